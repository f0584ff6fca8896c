"""MONAI's own tests with Hasten's classes in the place of MONAI's.

    pip download --no-binary monai --no-deps --no-build-isolation monai==1.5.2 && tar xf monai-1.5.2.tar.gz
    python tests/drop_in/monai_tests.py monai-1.5.2/tests

Each file of tests runs in a process of its own, in which every module of MONAI gives Hasten's class under MONAI's name.
The sdist has no tests of `monai.data`; a checkout of the repository does, and they run where they are there. Nor has it
the scores that long trainings must reach: those are printed, to compare with `--plain`. Prints how many tests
pass of each file, and names those that don't. Needs the package `parameterized`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PLACES = {
    "monai.data.CacheDataset": "hasten.cache.dataset",
    "monai.data.LMDBDataset": "hasten.monai.persistent",
    "monai.data.PersistentDataset": "hasten.monai.persistent",
    "monai.data.SmartCacheDataset": "hasten.monai.smart",
    "monai.data.ThreadBuffer": "hasten.monai.thread_loader",
    "monai.data.ThreadDataLoader": "hasten.monai.thread_loader",
    "monai.engines.SupervisedEvaluator": "hasten.monai.workflow",
    "monai.engines.SupervisedTrainer": "hasten.monai.workflow",
    "monai.handlers.SmartCacheHandler": "hasten.monai.smart",
    "monai.inferers.SlidingWindowInferer": "hasten.monai.inferer",
    "monai.optimizers.Novograd": "hasten.optim.novograd",
}
"""MONAI's class, and the module of Hasten's."""

FILES = (
    "data/test_cachedataset.py", "data/test_cachedataset_parallel.py", "data/test_dataloader.py",
    "data/test_handler_smartcache.py", "data/test_lmdbdataset.py", "data/test_persistentdataset.py",
    "data/test_smartcachedataset.py", "data/test_thread_buffer.py",
    "engines/test_prepare_batch_default.py", "engines/test_prepare_batch_extra_input.py",
    "handlers/test_handler_prob_map_producer.py", "handlers/test_handler_post_processing.py",
    "handlers/test_handler_validation.py",
    "inferers/test_sliding_window_inference.py",
    "integration/test_integration_lazy_samples.py", "integration/test_integration_sliding_window.py",
    "integration/test_integration_unet_2d.py", "integration/test_integration_workflows.py",
    "optimizers/test_optim_novograd.py",
)  # fmt: skip
"""Those that use one of the classes, in the layout of MONAI 1.5."""


_LIMIT_S = 7200
"""Of a file: that of the workflows trains four times, for minutes each on one thread."""


def main(arguments: list[str] | None = None) -> int:
    """Run all files, or those whose path holds `--only`; writes every test's outcome to `--out`."""
    parser = argparse.ArgumentParser(description="MONAI's own tests on Hasten's classes.")
    parser.add_argument("tests", type=Path, help="the folder tests/ of MONAI's source")
    parser.add_argument("--only", default="", help="a part of a file's path")
    parser.add_argument("--plain", action="store_true", help="with MONAI's own classes, to compare")
    parser.add_argument("--out", type=Path, help="write the outcomes to this JSON file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return _run_file(options.tests, options.child, options.out, plain=options.plain)
    outcomes: dict[str, dict[str, str]] = {}
    for name in FILES:
        if options.only in name and (options.tests / name).exists():
            outcomes[name] = outcome = _in_process(options.tests.resolve(), name, plain=options.plain)
            passed = sum(each == "passed" for each in outcome.values())
            print(f"{passed:4} of {_counted(outcome):4}  {name}", flush=True)
            for test, how in outcome.items():
                if how not in ("passed", "skipped"):
                    print(f"               {test}: {how}")
    every = {f"{name} {test}": how for name, tests in outcomes.items() for test, how in tests.items()}
    print(f"{sum(how == 'passed' for how in every.values())} of {_counted(every)} pass; skipped ones don't count")
    if options.out:
        options.out.write_text(json.dumps(outcomes, indent=1))
    return 0


def _counted(outcome: dict[str, str]) -> int:
    return sum(how != "skipped" for how in outcome.values())


def _in_process(tests: Path, name: str, *, plain: bool) -> dict[str, str]:
    """Each test's outcome: "passed", "skipped", or the last line of its error."""
    out = Path(os.environ.get("TMPDIR", "/tmp")) / f"monai-tests-{os.getpid()}.json"
    paths = [str(tests.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, __file__, str(tests), "--child", name, "--out", str(out), *["--plain"] * plain]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, cwd=tests.parent, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        output = (done.stderr.strip().splitlines() or ["no output"])[-1]
        sys.stdout.writelines(f"{line}\n" for line in done.stdout.splitlines() if line.startswith("score "))
    except subprocess.TimeoutExpired:
        output = f"more than {_LIMIT_S} s"
    if not out.exists():
        return {name: output}
    content: dict[str, str] = json.loads(out.read_text())
    out.unlink()
    return content


def _run_file(tests: Path, name: str, out: Path, *, plain: bool) -> int:
    import unittest

    # MONAI itself comes from where it is installed: beside the tests lies its source, for another version.
    sys.path.remove(str(tests.parent))
    if not plain:
        substitute()
    else:
        import monai  # noqa: F401
    sys.path.insert(0, str(tests.parent))
    if not (tests / "test_utils.py").exists():
        sys.path.insert(0, str(Path(__file__).parent))
        utils = sys.modules["tests.test_utils"] = import_module("monai_test_utils")
        sys.modules["tests.testing_data"] = sys.modules["tests.testing_data.integration_answers"] = utils
    module = import_module(".".join(["tests", *Path(name).with_suffix("").parts]))
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TestResult()
    names = [each.id().partition(".")[2] for each in _each(suite)]
    suite.run(result)
    outcome = dict.fromkeys(names, "passed")
    for test, _ in result.skipped:
        outcome[test.id().partition(".")[2]] = "skipped"
    for test, text in [*result.failures, *result.errors]:
        identity = getattr(test, "test_case", test).id().partition(".")[2]
        outcome[identity] = text.strip().splitlines()[-1]
        print(text, file=sys.stderr)
    out.write_text(json.dumps(outcome))
    return 0


def _each(suite: object) -> Iterator[object]:
    try:
        for one in suite:  # type: ignore[attr-defined]
            yield from _each(one)
    except TypeError:
        yield suite


def substitute() -> None:
    """Let every module of MONAI that holds one of the classes hold Hasten's."""
    modules = {place.rpartition(".")[0] for place in PLACES}
    for module in sorted(modules):
        import_module(module)
    loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "monai"]
    for place, home in PLACES.items():
        where, _, name = place.rpartition(".")
        theirs, ours = getattr(import_module(where), name), getattr(import_module(home), name)
        for module in loaded:
            for attribute, value in list(vars(module).items()):
                if value is theirs:
                    setattr(module, attribute, ours)


if __name__ == "__main__":
    sys.exit(main())
