"""What more workers would gain: a model of a training's step, fitted to measurements, with its uncertainty."""
