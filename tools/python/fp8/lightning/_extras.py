# SPDX-License-Identifier: Apache-2.0
"""Lightning's profiler and the image folders of lightning-habana on hpu."""

import typing

import torch


class Profiler:
    """Lightning's PyTorchProfiler: operators of hpu compute on the host's cores, and stand in its traces and tables as the CPU's do.

    Arguments are PyTorchProfiler's; those after `record_module_names` are torch.profiler's. sort_by_key: "hpu_time_total" is "cpu_time_total"."""

    def __init__(self, dirpath: typing.Any = None, filename: typing.Optional[str] = None, group_by_input_shapes: bool = False,
                 export_to_chrome: bool = True, row_limit: int = 20, sort_by_key: typing.Optional[str] = None, record_module_names: bool = False,
                 **kwargs: typing.Any) -> None:
        sort_by_key = (sort_by_key or "cpu_time_total").replace("hpu", "cpu")
        super().__init__(dirpath=dirpath, filename=filename, group_by_input_shapes=group_by_input_shapes,  # type: ignore[call-arg]
                         export_to_chrome=export_to_chrome, row_limit=row_limit, sort_by_key=sort_by_key,
                         record_module_names=record_module_names, **kwargs)


class DataModule:
    """Images in folders by class (torchvision's ImageFolder), for training and validation."""

    def __init__(self, train_dir: str = "/tmp/data", val_dir: str = "/tmp/data", num_workers: int = 8, normalize: bool = False, seed: int = 42,
                 batch_size: int = 32, train_transforms: typing.Any = None, val_transforms: typing.Any = None, pin_memory: bool = True,
                 shuffle: bool = False, drop_last: bool = True) -> None:
        super().__init__()
        self.folders, self.transforms = {"train": train_dir, "val": val_dir}, {"train": train_transforms, "val": val_transforms}
        self.normalize, self.seed = normalize, seed
        self.loading = {"batch_size": batch_size, "num_workers": num_workers, "drop_last": drop_last}
        self.shuffle = shuffle
        del pin_memory  # the host's memory is the device's

    def _loader(self, part: str, shuffle: bool) -> typing.Any:
        from torchvision import datasets, transforms
        steps = self.transforms[part] or [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
        if self.normalize:
            steps = [*steps, transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        images = datasets.ImageFolder(self.folders[part], transforms.Compose(steps))
        order = torch.Generator().manual_seed(self.seed)
        return torch.utils.data.DataLoader(images, shuffle=shuffle, generator=order, **self.loading)

    def train_dataloader(self) -> typing.Any: return self._loader("train", self.shuffle)
    def val_dataloader(self) -> typing.Any: return self._loader("val", False)
    test_dataloader = val_dataloader
