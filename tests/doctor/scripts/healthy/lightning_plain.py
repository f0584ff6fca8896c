# expects: nothing
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def training_step(self, batch, index):
        image, label = batch
        loss = nn.functional.mse_loss(self.net(image), label)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        image, label = batch
        self.log("held_out", nn.functional.mse_loss(self.net(image), label))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
data = TensorDataset(torch.rand(128, 1, 64, 64), torch.rand(128, 1, 64, 64))
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    check_val_every_n_epoch=2,
)
trainer.fit(Module(), DataLoader(data, batch_size=8), DataLoader(data, batch_size=32))
