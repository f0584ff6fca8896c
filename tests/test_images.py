"""The Dockerfile, the Apptainer definition and their page say the same; `make images` takes the steps themselves."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest

from tools.image_root import assignments, environment_of, parsed, readme_commands

ROOT = Path(__file__).parents[1]
IMAGE = parsed((ROOT / "Dockerfile").read_text())
DEFINITION = (ROOT / "hasten.def").read_text()
PAGE = (ROOT / "docs/how-to/containers.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def section(name: str) -> list[str]:
    """Lines of a part of the definition, continued ones joined."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|^#|\Z)", DEFINITION, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return [line.strip() for line in re.sub(r"\\\n\s*", "", found[1]).splitlines() if line.strip()]


def runs() -> list[str]:
    return [rest for kind, rest in IMAGE.steps if kind == "RUN"]


def test_both_take_the_same_steps_from_the_same_base() -> None:
    assert f"From: {IMAGE.base}" in DEFINITION.splitlines()
    steps = [line for line in section("post") if not re.match(r'(export )?[A-Z_]+=("{{.*}}"|\S+)$', line)]
    *shared, user = runs()
    assert steps == shared
    assert user.startswith("useradd")  # Apptainer runs as its caller


def test_both_take_the_same_arguments_and_the_page_names_them() -> None:
    assert {line.rstrip("=") for line in section("arguments")} == set(IMAGE.arguments)
    assert [name for name in IMAGE.arguments if f"{{{{ {name} }}}}" not in DEFINITION or name not in PAGE] == []


def test_both_copy_the_same_files_which_docker_is_given() -> None:
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for kind, rest in IMAGE.steps if kind == "COPY" for name in rest.split()[:-1]]
    assert sorted(copied) == sorted(given) == sorted(line.split()[0] for line in section("files"))
    assert [name for name in copied if not (ROOT / name).exists()] == []
    # What the build of the package asks for.
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"} <= set(copied)


def test_both_start_hasten_with_the_same_variables() -> None:
    entry = json.loads(IMAGE.settings["ENTRYPOINT"])
    assert entry == [*PROJECT["scripts"]] == ["hasten"]
    assert section("runscript") == ['exec hasten "$@"']
    inside = dict(pair for line in section("environment") for pair in assignments(line.removeprefix("export ")).items())
    of_docker = environment_of(IMAGE)
    assert of_docker["HASTEN_CACHE"] == IMAGE.settings["VOLUME"]
    assert {name: inside[name] for name in ("PATH", "HASTEN_KERNELS")} == {
        name: of_docker[name] for name in ("PATH", "HASTEN_KERNELS")
    }
    # All that others write lies in the cache folder, wherever that is.
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
        assert inside[name].replace("$HASTEN_CACHE", of_docker["HASTEN_CACHE"]) == of_docker[name]
    named = (IMAGE.settings["VOLUME"], IMAGE.settings["WORKDIR"], "HASTEN_CACHE", "HASTEN_KERNELS")
    assert [name for name in named if f"`{name}`" not in PAGE] == []


def test_kernels_are_compiled_where_runs_look_for_them() -> None:
    (warm,) = [line for line in runs() if line.endswith("hasten warm")]
    assert environment_of(IMAGE)["HASTEN_KERNELS"] == f"{assignments(warm.split()[0])['HASTEN_CACHE']}/kernels"


def test_packages_and_versions_are_the_projects() -> None:
    packages = next(line for line in runs() if "apt-get install" in line).split()
    assert {"g++", "python3", "python3-dev", "python3-venv"} <= set(packages)
    installed = [line for line in runs() if "pip install" in line]
    assert [line for line in installed if "--constraint /opt/hasten/source/constraints.txt" not in line] == []
    assert "torch==" in (ROOT / "constraints.txt").read_text()
    python = re.search(r"Debian 12 with its Python (\d+)\.(\d+)", PAGE)
    assert python is not None
    assert fnmatch.fnmatch(IMAGE.base, "debian:bookworm*")
    least = tuple(map(int, re.findall(r"\d+", PROJECT["requires-python"])))
    assert tuple(map(int, python.groups())) >= least
    extras = re.findall(r"EXTRAS=\[([\w,]+)\]", PAGE)
    assert set(",".join(extras).split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_readme_begins_with_commands_of_the_image() -> None:
    commands = readme_commands((ROOT / "README.md").read_text())
    assert [command.split()[:2] for command in commands] == [["hasten", "train"], ["hasten", "predict"]]


def test_an_unknown_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="HEALTHCHECK"):
        parsed("FROM debian:bookworm\nHEALTHCHECK NONE\n")
