"""Medical Segmentation Decathlon folders: a dataset.json that lists the cases."""

from __future__ import annotations

from pathlib import Path

from hasten.cases.labels import split_ignore
from hasten.cases.layouts import refuse_list
from hasten.cases.listing import Listing, case_from_entry, join_entries, load_json
from hasten.cases.nnunet import channel_names, is_nnunet, labels_and_regions, read_nnunet
from hasten.cases.place import Place


def read_decathlon(path: Path, place: Place) -> Listing:
    """The cases of a dataset.json, whose names start at `place`; a `test` list is ignored. Raises ValueError.

    A dataset.json of nnU-Net v2, which lists no cases, is read by `hasten.cases.nnunet`.
    """
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f'{path}: must be a JSON object with "training" and "labels".')
    if is_nnunet(content):
        return read_nnunet(path, content, place)
    if "training" not in content:
        refuse_list(path)
    entries = content["training"]
    if not isinstance(entries, list):
        raise ValueError(f'{path}: "training" must be a list of {{"image": ..., "label": ...}}.')
    fields = join_entries(case_from_entry(e, place, f"{path}: training[{i}]") for i, e in enumerate(entries))
    if "labels" not in content:
        raise ValueError(f'{path}: has no "labels"; add them, as in {{"0": "background", "1": "spleen"}}.')
    channels = channel_names(content, path)
    declared, ignore = split_ignore(content["labels"], str(path))
    labels, regions, region_values = labels_and_regions(declared, content.get("regions_class_order"), path)
    return Listing(
        name=str(content.get("name") or place.folder.name),
        source=path,
        labels=labels,
        channels=channels,
        modality=channels[0] if channels else "",
        regions=regions,
        region_values=region_values,
        ignore=ignore,
        **fields,
    )
