"""`hasten doctor RUN`: runs a bounded number of a run's steps and reports where their time goes."""
