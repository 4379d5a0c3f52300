from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher.rebinding import Rebinding, rebinders, rebound_in_tree
from patcher.target import Target

ENGINE = "sglang.srt.entrypoints.engine"
NAMES: dict[str, str | tuple[str, ...]] = {
    ENGINE: "_set_envs_and_config",
    f"{ENGINE}.Engine": ("shutdown", "_launch_subprocesses"),
}

Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def site(tmp_path: Path) -> Write:
    """Writes files below a directory of installed packages."""

    def write(files: dict[str, str]) -> Path:
        for name, source in files.items():
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        return tmp_path / "site"

    return write


REBINDS = {
    "by its full name": "import sglang.srt.entrypoints.engine\nsglang.srt.entrypoints.engine._set_envs_and_config = f",
    "by an imported parent": "import sglang\nsglang.srt.entrypoints.engine._set_envs_and_config = f",
    "by the module": "from sglang.srt.entrypoints import engine\nengine._set_envs_and_config = f",
    "by another name": "from sglang.srt.entrypoints import engine as e\ne._set_envs_and_config = f",
    "imported as": "import sglang.srt.entrypoints.engine as e\ne._set_envs_and_config = f",
    "in a method": """
        class Rollout:
            def launch(self):
                from sglang.srt.entrypoints import engine as e
                if self.ray:
                    e._set_envs_and_config = f
        """,
    "under a second name": """
        from sglang.srt.entrypoints import engine
        module = engine
        module._set_envs_and_config = f
        """,
    "by importlib": """
        import importlib
        e = importlib.import_module("sglang.srt.entrypoints.engine")
        e._set_envs_and_config = f
        """,
    "in sys.modules": 'import sys\nsys.modules["sglang.srt.entrypoints.engine"]._set_envs_and_config = f',
    "from sys.modules": """
        import sys
        if e := sys.modules.get("sglang.srt.entrypoints.engine"):
            e._set_envs_and_config = f
        """,
    "deleted": "from sglang.srt.entrypoints import engine\ndel engine._set_envs_and_config",
    "in its namespace": 'from sglang.srt.entrypoints import engine\nvars(engine)["_set_envs_and_config"] = f',
    "in its __dict__": 'from sglang.srt.entrypoints import engine\nengine.__dict__["_set_envs_and_config"] = f',
    "setattr": 'from sglang.srt.entrypoints import engine\nsetattr(engine, "_set_envs_and_config", f)',
    "patch.object": 'from sglang.srt.entrypoints import engine\npatch.object(engine, "_set_envs_and_config").start()',
    "patch": 'mock.patch("sglang.srt.entrypoints.engine._set_envs_and_config", f).start()',
    "a decorator": '@patch("sglang.srt.entrypoints.engine._set_envs_and_config")\ndef run(mock): ...',
    "patch.multiple": 'patch.multiple("sglang.srt.entrypoints.engine", _set_envs_and_config=f)',
    "monkeypatch": 'monkeypatch.setattr("sglang.srt.entrypoints.engine._set_envs_and_config", f)',
    "a patcher of its own": 'Patcher.add_patch("sglang.srt.entrypoints.engine._set_envs_and_config", "x.y.f")',
    "a plugin": """
        HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", f, HookType.REPLACE)
        """,
    "a method of a class": "from sglang.srt.entrypoints.engine import Engine\nEngine.shutdown = f",
    "another of its methods": 'setattr(sglang.srt.entrypoints.engine.Engine, "_launch_subprocesses", f)\nimport sglang',
}


@pytest.mark.parametrize("source", REBINDS.values(), ids=REBINDS)
def test_ways_to_rebind(site: Write, source: str) -> None:
    (found,) = rebinders([site({"verl/rollout.py": source})], NAMES)
    assert found.package == "verl"
    assert found.path.name == "rollout.py"
    assert found.what.startswith(("assigns to sglang.srt.entrypoints.engine", "replaces sglang.srt.entrypoints.engine"))


PERHAPS = {
    "an object that comes from elsewhere": """
        import sglang.srt.entrypoints.engine

        def install(module):
            module._set_envs_and_config = f
        """,
    "a name that comes from a list": """
        from sglang.srt.entrypoints import engine
        for name in ("_set_envs_and_config", "_set_gc"):
            setattr(engine, name, f)
        """,
    "a hook of some kind": 'HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", f)',
    "a hook around it": """
        SglangHook("sglang.srt.entrypoints.engine._set_envs_and_config", f, HookType.AROUND)
        """,
    "what does not parse": "from sglang.srt.entrypoints import engine\nengine._set_envs_and_config = = f",
}


@pytest.mark.parametrize("source", PERHAPS.values(), ids=PERHAPS)
def test_what_is_only_suspected_is_said_so(site: Write, source: str) -> None:
    (found,) = rebinders([site({"verl/rollout.py": source})], NAMES)
    assert found.what.startswith("may ")


HARMLESS = {
    "a call": "from sglang.srt.entrypoints import engine\nengine._set_envs_and_config(args)",
    "an import": "from sglang.srt.entrypoints.engine import _set_envs_and_config",
    "a function of the same name": "def _set_envs_and_config(args): ...",
    "another module": "from sgl_jax.srt.entrypoints import engine\nengine._set_envs_and_config = f",
    "a stand-in for another module": """
        import sglang.srt.managers
        module = types.ModuleType("verl.rollout")
        module._set_envs_and_config = f
        """,
    "an attribute of its own": """
        from sglang.srt.entrypoints import engine
        class Rollout:
            def __init__(self):
                self._set_envs_and_config = engine._set_envs_and_config
        """,
    "a look at it": 'from sglang.srt.entrypoints import engine\ngetattr(engine, "_set_envs_and_config", None)',
    "a hook after it": """
        HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", f, HookType.AFTER)
        """,
    "a comment": "# sglang.srt.entrypoints.engine._set_envs_and_config = f",
    "another name": 'from sglang.srt.entrypoints import engine\nsetattr(engine, "_set_gc", f)  # _set_envs_and_config',
}


@pytest.mark.parametrize("source", HARMLESS.values(), ids=HARMLESS)
def test_what_rebinds_nothing(site: Write, source: str) -> None:
    assert rebinders([site({"verl/rollout.py": source})], NAMES) == []


REBIND = "from sglang.srt.entrypoints import engine\nengine._set_envs_and_config = f\n"


def test_a_finding_names_the_place_and_shows_the_line(site: Write) -> None:
    root = site({"verl/workers/rollout.py": "\n\n" + REBIND})
    assert rebinders([root], NAMES) == [
        Rebinding(
            package="verl",
            path=root / "verl/workers/rollout.py",
            line=4,
            what=f"assigns to {ENGINE}._set_envs_and_config",
            evidence="engine._set_envs_and_config = f",
        )
    ]


def test_sglang_itself_is_passed_over_and_tests_are_named_as_such(site: Write) -> None:
    files = dict.fromkeys(["sglang/srt/a.py", "sglang/test/b.py", "verl/tests/c.py", "shim.py", "x/.git/d.py"], REBIND)
    found = rebinders([site(files)], NAMES)
    assert [(one.package, one.what.endswith("(in a test)")) for one in found] == [
        ("shim", False),
        ("sglang", True),
        ("verl", True),
    ]


def test_the_same_place_twice_is_one(site: Write) -> None:
    root = site({"verl/a.py": REBIND})
    assert len(rebinders([root, root], NAMES)) == 1


def test_editable_installs_are_followed(site: Write, tmp_path: Path) -> None:
    site({"../src/verl/a.py": REBIND, "../lib/areal/b.py": REBIND})
    finder = f"import sys\nMAPPING: dict[str, str] = {{'areal': '{tmp_path / 'lib' / 'areal'}'}}\nNAMESPACES = {{}}\n"
    root = site(
        {
            "__editable__.verl-1.pth": f"{tmp_path / 'src'}\n",
            "distutils-precedence.pth": "import os; os.environ\n",
            "__editable___areal_1_finder.py": finder,
            "broken___finder.py": "",
            "__editable___broken_finder.py": "MAPPING = {nothing}\n",
        }
    )
    assert {(one.package, one.path) for one in rebinders([root], NAMES)} == {
        ("verl", tmp_path / "src/verl/a.py"),
        ("areal", tmp_path / "lib/areal/b.py"),
    }


def test_a_directory_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert rebinders([tmp_path / "nowhere"], NAMES) == []


def test_a_file_that_cannot_be_read_is_passed_over(site: Write) -> None:
    root = site({"verl/a.py": REBIND})
    (root / "verl" / "broken.py").symlink_to(root / "nowhere.py")
    assert len(rebinders([root], NAMES)) == 1


IN_TREE = {
    "from outside": "import sglang.srt.entrypoints.engine as e\ne._set_envs_and_config = f",
    "relative": "from .entrypoints import engine\nengine._set_envs_and_config = f",
    "hidden by a function": """
        from sglang.srt.entrypoints.engine import _set_envs_and_config
        def _set_envs_and_config(args): ...
        """,
    "hidden by an assignment": """
        from .entrypoints.engine import _set_envs_and_config as prepare
        prepare = f  # _set_envs_and_config
        """,
}


@pytest.mark.parametrize("source", IN_TREE.values(), ids=IN_TREE)
def test_rebound_by_another_module_of_the_tree(site: Write, source: str) -> None:
    here = "def _set_envs_and_config(args): ...\n_set_envs_and_config = other\n"
    root = site({"sglang/srt/entrypoints/engine.py": here, "sglang/srt/a.py": source, "sglang/test/b.py": REBIND})
    (found,) = rebound_in_tree(Target(root / "sglang"), "srt/entrypoints/engine.py", "_set_envs_and_config")
    assert (found.package, found.path) == ("sglang", root / "sglang/srt/a.py")
    assert "sglang.srt.entrypoints.engine._set_envs_and_config" in found.what


def test_a_tree_that_only_uses_the_function(site: Write) -> None:
    uses = "from sglang.srt.entrypoints.engine import _set_envs_and_config\n_set_envs_and_config(1)\n"
    root = site({"sglang/srt/entrypoints/engine.py": "def _set_envs_and_config(args): ...\n", "sglang/bench.py": uses})
    assert rebound_in_tree(Target(root / "sglang"), "srt/entrypoints/engine.py", "_set_envs_and_config") == []
