"""Networks that tests share: small and hand-made, or torchvision's with random weights."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

NETS = ["resnet18", "vgg11_bn", "densenet121", "mobilenet_v2", "efficientnet_b0"]


def torchvision_net(name):
    torch.manual_seed(0)
    with torch.device("meta"):  # VGG's 120 million weights would take seconds to draw
        net = getattr(torchvision.models, name)(num_classes=10)
        if name == "vgg11_bn":
            net.classifier[0], net.classifier[3] = nn.Linear(512 * 49, 32), nn.Linear(32, 4096)
    net.to_empty(device="cpu")
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return net.eval().requires_grad_(False)


class Reused(nn.Module):
    """ReLU as a function, in place or not, one shared pool, one shared ReLU, and an addition."""

    def __init__(self, inplace=False):
        super().__init__()
        torch.manual_seed(1)
        self.inplace = inplace
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 1)
        self.pool, self.relu, self.fc = nn.MaxPool2d(2), nn.ReLU(inplace), nn.Linear(6, 5)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x), inplace=self.inplace))
        x = self.relu(self.conv2(x))
        y = self.conv3(x)
        if self.inplace:
            y += x
        else:
            y = y + x
        x = self.pool(self.relu(y))
        return self.fc(x.mean((2, 3)))
