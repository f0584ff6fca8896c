"""What a script does beside its steps: validations, hooks, passes that are made twice; and what was not seen of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hasten.doctor.script.doctor import ScriptReport, judge, lines
from hasten.doctor.script.launch import run_script

FAULTY = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(24, 1, 8, 8), torch.rand(24, 1, 8, 8))
held_out = TensorDataset(torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))
use_cuda = torch.cuda.is_available()
loader = DataLoader(data, batch_size=4, pin_memory=use_cuda)
again = DataLoader(data, batch_size=4)
rest = DataLoader(held_out, batch_size=4)
network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 3, padding=1))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
teacher = torch.nn.Conv2d(1, 1, 3, padding=1)
kept = []
for epoch in range(9):
    network.train()
    network[0].register_forward_hook(lambda module, args, result: kept.append(1))  # hooked
    for image, label in loader:
        with torch.autocast("cuda", enabled=use_cuda):
            loss = (network(image) - label).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        score = network(image).detach().mean()  # again
        guide = teacher(image).detach()  # taught
        scores = network[0](image).detach().cpu()  # copied
        scores.numpy(), scores[0].tolist()  # from the host
    network.eval()
    torch.no_grad()
    for image, label in again:
        (network(image) - label).square().mean()  # a graph
    for image, label in rest:
        (network(image.to("cpu", copy=True)) - label).square().mean()
    torch.save(network.state_dict(), FILE)
"""
HEALTHY = (
    FAULTY.replace("    network[0].register_forward_hook", "    epoch or network[0].register_forward_hook")
    .replace("score = network(image).detach().mean()  # again", "score = loss.detach()")
    .replace("guide = teacher(image)", "with torch.no_grad(): guide = teacher(image)")
    .replace("    torch.no_grad()\n    for image, label in again:", "    for image, label in ():")
    .replace("    torch.save(", "    with torch.no_grad(): network(torch.rand(1, 1, 8, 8))\n    torch.save(")
    .replace("    for image, label in rest:\n", "    with torch.inference_mode():\n     for image, label in rest:\n")
)
ADVERSARIAL = """
import torch

network = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for step in range(40):
    # Trained with its norms as they are, and looked at by its gradient.
    network.eval()
    if step % 2:
        network(torch.rand(2, 3)).sum().backward()
    else:
        image = torch.rand(2, 3, requires_grad=True)
        torch.autograd.grad(network(image).sum(), image)
        network(image.detach()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def watched(folder: Path, text: str, steps: int = 30) -> ScriptReport:
    script = folder / "train.py"
    script.write_text(text.replace("FILE", repr(str(folder / "last.pt"))))
    run = run_script([sys.executable, str(script)], steps=steps, seconds=60, assume_cuda=True, quiet=True)
    assert run.records, run.output
    return judge(run)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> ScriptReport:
    return watched(tmp_path_factory.mktemp("faulty"), FAULTY)


def line_of(word: str) -> int:
    return next(number for number, line in enumerate(FAULTY.splitlines(), 1) if word in line)


@pytest.mark.parametrize(
    ("name", "word", "evidence"),
    [
        ("validation-graph", "# a graph", "7 of 7 forward passes"),
        ("training-cases-validated", "network.eval()", "6 of 7 forward passes"),
        ("hooks-pile-up", "# hooked", "more hooks after 30 steps"),
        ("repeated-forward", "# again", "a step"),
        ("needless-grad", "# taught", "1.0 a step"),
    ],
)
def test_what_is_done_beside_the_steps_is_named_at_its_line(
    faulty: ScriptReport, name: str, word: str, evidence: str
) -> None:
    (found,) = (each for each in faulty.findings if each.name == name)
    assert found.where.endswith(f"train.py:{line_of(word)}")
    assert evidence in found.evidence
    assert found.cure


def test_what_follows_the_gpu_is_judged_as_with_one(faulty: ScriptReport) -> None:
    named = {each.name for each in faulty.findings if each.gain is None}  # an experiment may find autocast faster
    assert named & {"unpinned-memory", "no-autocast"} == set()


def test_what_was_copied_to_the_host_is_read_there(faulty: ScriptReport) -> None:
    places = {each.where.rpartition(":")[2] for each in faulty.findings if each.name == "host-read"}
    assert str(line_of("# copied")) in places
    assert str(line_of("# from the host")) not in places


def test_a_script_without_these_faults_has_none(tmp_path: Path) -> None:
    names = {each.name for each in watched(tmp_path, HEALTHY).findings}
    others = {"validation-graph", "training-cases-validated", "hooks-pile-up", "repeated-forward", "unpinned-memory"}
    others |= {"needless-grad"}
    assert names & others == set()
    assert "needless-forward" in names, "the teacher's, without a graph, that nobody uses"


def test_gradients_in_evaluation_mode_are_no_forgotten_graph(tmp_path: Path) -> None:
    assert "validation-graph" not in {each.name for each in watched(tmp_path, ADVERSARIAL).findings}


UNUSUAL = """
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(24, 1, 8, 8)), batch_size=4)
network = torch.nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.LBFGS(network.parameters(), lr=0.01, max_iter=3)
for epoch in range(9):
    for (image,) in loader:
        network.eval()
        with torch.no_grad():
            guess = (network(image) > 0).float()
        network.train()
        pieces = (image + torch.arange(9).view(9, 1, 1, 1, 1)).unbind()
        def closure():
            optimizer.zero_grad()
            for piece in pieces:
                loss = (checkpoint(network, piece, use_reentrant=False) - guess).square().mean()
                loss.backward()
            return loss
        optimizer.step(closure)
"""


def test_pseudo_labels_checkpoints_closures_and_accumulation_are_no_faults(tmp_path: Path) -> None:
    record = watched(tmp_path, UNUSUAL, steps=8).run.records[0]
    assert record.listed("validations") == [], "the labels are of the step's own batch"
    assert record.listed("loops") == [], "each piece has its backward pass"
    assert "repeated_forward" not in {each["kind"] for each in record.listed("calls")}


DATA = "data = TensorDataset(torch.rand(24, 1, 8, 8), torch.rand(24, 1, 8, 8))"
LONG = DATA.replace("24", "400")
assert DATA in FAULTY


def test_what_was_not_seen_is_told_with_the_steps_that_lead_there(tmp_path: Path, faulty: ScriptReport) -> None:
    assert not any(line.startswith("not seen") for line in lines(faulty))
    loop = "    for image, label in loader:\n"
    by_hand = "    batches = iter(loader)\n    while True:\n        image, label = next(batches)\n"
    report = watched(tmp_path, HEALTHY.replace(DATA, LONG).replace(loop, by_hand), steps=10)
    kinds = "a validation, a checkpoint, a second pass over the data"
    assert f"not seen    {kinds}; a pass has 100 batches, so give it --steps 110" in lines(report)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScriptReport, Path]:
    """A script whose passes are longer than what is watched, with results of an earlier training beside it."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "last.pt").write_text("trained for a week")
    return watched(folder, FAULTY.replace(DATA, LONG), steps=24), folder


def test_a_pass_ends_early_so_that_what_follows_it_is_seen(long: tuple[ScriptReport, Path]) -> None:
    report = long[0]
    assert [step["round"] for step in report.run.records[0].listed("steps") if step["round"] < 1] == [0.12, 0.06]
    names = {each.name for each in report.findings}
    assert {"validation-graph", "training-cases-validated", "hooks-pile-up", "repeated-forward"} <= names
    assert not any(line.startswith("not seen") for line in lines(report))


def test_what_was_there_before_is_not_overwritten_after_a_pass_that_ended_early(
    long: tuple[ScriptReport, Path],
) -> None:
    report, folder = long
    assert len(report.run.records[0].listed("saves")) == 2
    assert (folder / "last.pt").read_text() == "trained for a week"
    assert sorted(each.name for each in folder.iterdir()) == ["last.pt", "train.py"]


LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Conv2d(1, 1, 3, padding=1)
    def training_step(self, batch, index):
        return (self.network(batch[0]) - batch[1]).square().mean()
    def validation_step(self, batch, index):
        self.log("loss", (self.network(batch[0]) - batch[1]).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader = DataLoader(TensorDataset(*torch.rand(2, 400, 1, 8, 8)), batch_size=4)
options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "default_root_dir": FOLDER}
lightning.Trainer(max_epochs=9, **options).fit(Module(), loader, loader)
"""


def test_lightnings_passes_are_short_as_well(tmp_path: Path) -> None:
    report = watched(tmp_path, LIGHTNING.replace("FOLDER", repr(str(tmp_path))), steps=24)
    record = report.run.records[0]
    assert [step["round"] for step in record.listed("steps") if step["round"] < 1] == [0.12]
    assert [each["step"] for each in record.listed("validations")][-1:] == [12]
    assert record.listed("saves")


IGNITE = """
import torch
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(*torch.rand(2, 400, 1, 8, 8)), batch_size=4)
rest = DataLoader(TensorDataset(*torch.rand(2, 40, 1, 8, 8)), batch_size=4)
network = torch.nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

def train(engine, batch):
    (network(batch[0]) - batch[1]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def validate(engine, batch):
    network.eval()
    network(batch[0])
    network.train()

trainer, evaluator = Engine(train), Engine(validate)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(rest))
trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda error: print("failed"))
trainer.add_event_handler(Events.COMPLETED, lambda: print("completed"))
trainer.run(loader, max_epochs=9)
print("went on")
"""


def test_passes_of_ignite_are_short_and_its_engines_end_without_an_error(tmp_path: Path) -> None:
    report = watched(tmp_path, IGNITE, steps=24)
    record = report.run.records[0]
    assert (report.run.exit_code, report.run.output) == (0, "")
    assert [step["round"] for step in record.listed("steps") if step["round"] < 1] == [0.12, 0.06]
    assert [(each["step"], each["passes"]) for each in record.listed("validations")] == [(12, 10), (18, 10)]
    assert "validation-graph" in {each.name for each in report.findings}


ACCELERATE = """
import accelerate
import torch
from torch.utils.data import DataLoader, TensorDataset

network = torch.nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(*torch.rand(2, 400, 1, 8, 8)), batch_size=4)
accelerator = accelerate.Accelerator(cpu=True)
network, optimizer, batches = accelerator.prepare(network, optimizer, loader)
for epoch in range(9):
    for image, label in batches:
        accelerator.backward((network(image) - label).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        network(torch.rand(1, 1, 8, 8))
"""


def test_passes_of_accelerate_are_short_with_the_batch_that_it_has_ahead(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    record = watched(tmp_path, ACCELERATE, steps=24).run.records[0]
    shares = [step["round"] for step in record.listed("steps")]
    (first, *_) = rounds = [each["step"] for each in record.listed("validations")]
    assert len(rounds) == 2
    assert shares[first] == shares[first - 1] == pytest.approx(first / 100, abs=0.02)
    (loader,) = record.training_loaders
    assert loader["site"].endswith(":8"), "the script's own line"


def test_a_long_validation_ends_early_and_counts_whole(tmp_path: Path) -> None:
    slow = "    for image, label in rest:\n        __import__('time').sleep(0.4)\n"
    text = HEALTHY.replace(DATA, LONG).replace("     for image, label in rest:\n", "     " + slow.lstrip())
    text = text.replace("(torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8))", "(*torch.rand(2, 400, 1, 8, 8))")
    assert "sleep" in text
    assert "400" in text
    script = tmp_path / "train.py"
    script.write_text(text.replace("FILE", repr(str(tmp_path / "last.pt"))))
    run = run_script([sys.executable, str(script)], steps=24, seconds=12, quiet=True)
    (record,) = run.records
    assert record.ended == "steps"
    assert [each["seconds"] for each in record.listed("validations")] == pytest.approx([40.5, 40.5], rel=0.1)
