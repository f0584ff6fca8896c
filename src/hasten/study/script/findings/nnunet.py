"""nnU-Net's own trainer, where its loader processes or its reads of the loss hold up the step."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.rules import WAITS
from hasten.study.script.records import Record
from hasten.study.words import ms


def find(record: Record) -> list[Finding]:
    """nnunet-loader: with the command of Hasten's trainer for the same training."""
    trainer = record.listed_dict("nnunet")
    wait, reads, step_s = record.part("wait"), record.part("device_reads"), record.step_s
    if not trainer or trainer["hasten"] or wait + reads < WAITS * step_s:
        return []
    # On a CPU the batches are then made by the cores that train, which costs about half of what was waited.
    saved = wait + reads if record.on_gpu else wait / 2
    arguments = " ".join(_without_trainer(trainer["arguments"]))
    return [
        record.finding(
            "nnunet-loader",
            "nnUNetTrainer.train_step",
            "nnU-Net waits for its loader processes, and reads the loss in every step",
            f"pip install 'hasten[nnunet]', then: hasten nnunet train {arguments}",
            evidence=f"of {ms(step_s)} a step waits {ms(wait)} for its batch and {ms(reads)} for values of the device",
            cost_s=wait + reads,
            gain=gain_of(saved, step_s),
        )
    ]


def _without_trainer(arguments: list[str]) -> list[str]:
    """The same training by Hasten's trainer, which `hasten nnunet train` takes unless another is named."""
    if "-tr" not in arguments:
        return arguments
    at = arguments.index("-tr")
    name = arguments[at + 1] if at + 1 < len(arguments) else ""
    ours = name.replace("nnUNetTrainer", "nnUNetTrainerHasten", 1)
    return [*arguments[:at], *([] if name == "nnUNetTrainer" else ["-tr", ours]), *arguments[at + 2 :]]
