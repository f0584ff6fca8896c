# expects: nothing
import torch
from monai.data import CacheDataset, ThreadDataLoader, set_track_meta
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandSpatialCropd

torch.manual_seed(0)
set_track_meta(False)
torch.backends.cudnn.benchmark = True
cases = [{"image": torch.rand(1, 48, 48, 48), "label": (torch.rand(1, 48, 48, 48) > 0.5).float()} for _ in range(8)]
transforms = Compose(
    [
        EnsureTyped(keys=["image", "label"], device="cpu"),
        RandSpatialCropd(keys=["image", "label"], roi_size=(32, 32, 32), random_size=False),
        RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
    ]
)
data = CacheDataset(cases, transforms, cache_rate=1.0, num_workers=2, progress=False)
loader = ThreadDataLoader(data, batch_size=2, num_workers=0, shuffle=True)
net = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), norm="batch")
loss_function = DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(8):
    total = torch.zeros(())
    for batch in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(net(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"epoch {epoch} loss {total.item() / len(loader):.3f}")
