"""The effect sandbox: small modules in SGLang's shape, run for real in a fresh interpreter."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from patcher.errors import Surroundings
from patcher.sandbox import (
    Call,
    Case,
    DelegationEffect,
    FunctionEffect,
    run_delegation,
    run_function,
    run_function_cases,
)

ENGINE = """
from __future__ import annotations
import asyncio, logging, multiprocessing as mp, os, signal, threading, time
from typing import Dict, Optional
import torch, uvloop, zmq
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.entrypoints.EngineBase import EngineBase
from sglang.srt.entrypoints.engine_score_mixin import EngineScoreMixin
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang.srt.utils import assert_pkg_version, get_bool_env_var, is_cuda, kill_process_tree, set_ulimit
from sglang.version import __version__

logger = logging.getLogger(__name__)
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
_is_cuda = is_cuda()

class Engine(EngineScoreMixin, EngineBase):
    server_args_class: ServerArgs = ServerArgs
    def launch(self, server_args):
        _set_envs_and_config(server_args)
        os.environ["LAUNCHED_BY"] = type(self).__name__ + str(bool(self.helper()) or self.missing)

    @staticmethod
    def static(server_args): _set_envs_and_config(server_args)

    async def coroutine(self, server_args): _set_envs_and_config(server_args)

def _set_envs_and_config(server_args: ServerArgs):
    cfg = resolving_view(server_args)
    if cfg.nnodes > 1:
        os.environ.setdefault("NCCL_MNNVL_ENABLE", "1")
    os.environ["NCCL_NVLS_ENABLE"] = str(int(cfg.enable_nccl_nvls or cfg.enable_symm_mem))
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    set_ulimit()
    if cfg.tp_size * cfg.dp_size > 1:
        raise RuntimeError("one device was meant")
    if not get_bool_env_var("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK") and _is_cuda:
        assert_pkg_version("sgl-kernel", "0.3.21", "reinstall")
    if threading.current_thread() is threading.main_thread() and cfg.custom_sigquit_handler is None:
        signal.signal(signal.SIGQUIT, lambda signum, frame: kill_process_tree(os.getpid()))
    mp.set_start_method("spawn", force=True)
"""
FUNCTION = "_set_envs_and_config"
SET = {"NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}

Write = Callable[[str], Path]
Body = Callable[..., FunctionEffect]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a module into a tree like SGLang's."""

    def to_file(text: str) -> Path:
        source = tmp_path / "sglang" / "srt" / "entrypoints" / "engine.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        return source

    return to_file


@pytest.fixture
def run(write: Write) -> Body:
    """Runs `f` of a module, without a spawned process."""

    def run_text(text: str, function: str = "f", **options: object) -> FunctionEffect:
        given: dict[str, object] = {"env": {}, "spawn": False, **options}
        return run_function(write(text), function, **given)  # type: ignore[arg-type]

    return run_text


# What a call of the function does.


def test_environment_of_the_process_and_of_one_that_it_spawns(write: Write) -> None:
    effect = run_function(write(ENGINE), FUNCTION, env={"HOME": "/x"})
    assert effect == FunctionEffect({"HOME": "/x", **SET}, {"HOME": "/x", **SET}, SET, None, "")


def test_nothing_of_this_environment_arrives(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_ALGO", "PYTHONPATH", "LD_LIBRARY_PATH", "LC_CTYPE"):
        monkeypatch.setenv(name, "/nonexistent")
    effect = run_function(write(ENGINE), FUNCTION, env={})
    assert effect.environment == effect.child_environment == SET


def test_attributes_reach_the_function_through_a_view(run: Body) -> None:
    effect = run(ENGINE, FUNCTION, attributes={"enable_nccl_nvls": True, "nnodes": 2})
    assert effect.set_by_call == {**SET, "NCCL_NVLS_ENABLE": "1", "NCCL_MNNVL_ENABLE": "1"}
    assert "one device was meant" in (run(ENGINE, FUNCTION, attributes={"tp_size": 8}).error or "")


def test_what_unset_attributes_are(run: Body) -> None:
    text = """
def f(args):
    assert args.enable_x is False and args.disable_y is False and not args.is_z and not args.use_mla_backend()
    assert args.tp_size == args.nnodes == args.num_tokens == 1 and args.node_rank == 0
    assert args.custom_sigquit_handler is None and str(int(args.is_z)) == "0"
    assert not args.model_path and int(args.anything) == 0 and not args.anything > 0 and "x" not in args.backends
    args.kept = 5
    assert args.kept == 5 and args.anything is args.anything
"""
    assert run(text).error is None


@pytest.mark.parametrize("method", ["launch", "static", "coroutine"])
def test_methods(run: Body, method: str) -> None:
    effect = run(ENGINE, f"Engine.{method}")
    assert (effect.error, effect.set_by_call.items() >= SET.items()) == (None, True)
    assert effect.set_by_call.get("LAUNCHED_BY", "").startswith("Engine") == (method == "launch")


def test_coroutine_function(run: Body) -> None:
    text = "import asyncio, os\nasync def f(args):\n    await asyncio.sleep(0)\n    os.environ['A'] = '1'\n"
    assert run(text).set_by_call == {"A": "1"}


@pytest.mark.parametrize(
    "after",
    [
        "_set_envs_and_config = lambda server_args: None",
        "def _set_envs_and_config(server_args): pass",
        "def off(function): return lambda server_args: None\n_set_envs_and_config = off(_set_envs_and_config)",
        "globals()['_set_envs_and_config'] = print",
        "resolving_view = lambda args: type('Cfg', (), {'nnodes': 1})() and None",
    ],
)
def test_what_comes_further_down_counts(run: Body, after: str) -> None:
    assert not run(ENGINE + after, FUNCTION).set_by_call


def test_a_decorator_that_is_stubbed_changes_nothing(run: Body) -> None:
    text = ENGINE.replace("def _set", "@torch.no_grad()\n@uvloop.traced\ndef _set")
    assert run(text + "_set_envs_and_config = zmq.wrap(_set_envs_and_config)", FUNCTION).set_by_call == SET


def test_setting_at_import_is_not_by_the_call(run: Body) -> None:
    effect = run("import os\nos.environ['A'] = os.environ['B'] = '1'\ndef f(args): os.environ['B'] = '2'")
    assert (effect.environment, effect.set_by_call) == ({"A": "1", "B": "2"}, {"B": "2"})


def test_a_replaced_environ_does_not_reach_the_spawned_process(run: Body) -> None:
    text = "import os\ndef f(args):\n    os.environ = {'A': '1'}\n"
    effect = run(text, env={"B": "2"}, spawn=True)
    assert (effect.environment, effect.child_environment) == ({"A": "1"}, {"B": "2"})
    assert run(text.replace("{'A': '1'}", "None"), env={"B": "2"}).environment == {"B": "2"}


# Failures are values.


def test_an_exception_keeps_what_was_set(write: Write) -> None:
    source = write("import os\ndef f(args):\n    os.environ['A'] = '1'\n    raise ValueError('no')\n")
    effect = run_function(source, "f", env={})
    assert effect == FunctionEffect({"A": "1"}, {"A": "1"}, {"A": "1"}, f"ValueError: no ({source}:4)", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = 1\nraise RuntimeError('at import')", "RuntimeError: at import (ENGINE:2)"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name"),
        ("def f(args:\n", "SyntaxError: '(' was never closed (engine.py, line 1) (ENGINE:1)"),
        ("f = 3", "TypeError: 'int' object is not callable"),
        ("def g(args): pass", "NameError: f is not there once the module is executed"),
        ("from a import f", "NameError: f is not defined in this file; the name stands for <stub a.f>"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (ENGINE:2)"),
        ("import os\ndef f(args): os._exit(3)", "SystemExit: 3 (ENGINE:2)"),
        ("def f(args): raise KeyboardInterrupt", "KeyboardInterrupt (ENGINE:1)"),
        ("class E(Exception):\n    def __str__(self): 1/0\nraise E", "E: (no message) (ENGINE:3)"),
        ("def f(args): f(args)", "RecursionError: maximum recursion depth exceeded"),
        ("from zmq import ZMQError\nraise ZMQError('busy', errno=3)", "ZMQError: busy (ENGINE:2)"),
    ],
)
def test_what_the_module_raises_is_reported(run: Body, write: Write, text: str, error: str) -> None:
    found = (run(text).error or "").replace(str(write(text)), "ENGINE")
    assert found.startswith(error)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    effect = run_function(tmp_path / "gone.py", "f", env={"A": "1"}, spawn=False)
    assert (effect.environment, (effect.error or "")[:17]) == ({"A": "1"}, "FileNotFoundError")


def test_a_crash_keeps_what_came_before_it(write: Write) -> None:
    crash = "import ctypes, os\ndef f(args):\n    os.environ['A'] = '1'\n    args.crash and ctypes.string_at(0)\n"
    cases = [Case("", {}), Case("", {}, {"crash": True}), Case("", {})]
    whole, *lost = run_function_cases(write(crash), "f", cases, spawn="none")
    assert whole.set_by_call == {"A": "1"}
    ended = f"the interpreter ended with status -{int(signal.SIGSEGV)} before it answered"
    assert [effect.error for effect in lost] == [ended] * 2


def test_a_timeout_kills_the_group_and_keeps_what_came_before_it(write: Write) -> None:
    text = "import os, time\ndef f(args):\n    print(os.getpid())\n    while args.hang: time.sleep(9)\n"
    cases = [Case("", {}), Case("", {}, {"hang": True})]
    start = time.monotonic()
    whole, lost = run_function_cases(write(text), "f", cases, spawn="none", timeout=3)
    assert time.monotonic() - start < 60
    assert (whole.error, lost.error) == (None, "no answer within 3 s; the interpreter was stopped")
    with pytest.raises(ProcessLookupError):
        os.kill(int(whole.output), 0)


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", "/bin/cat", "/"])
def test_an_interpreter_that_does_not_work(write: Write, python: str) -> None:
    with pytest.raises(Surroundings) as error:
        run_function(write(ENGINE), FUNCTION, env={}, python=python)
    assert (error.value.where, error.value.exit_code) == (os.path.realpath(python) if python == "/" else python, 4)
    assert error.value.hint


def test_another_interpreter_named_relatively(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(sys.executable).parent)
    assert run_function(write(ENGINE), FUNCTION, env={}, python=f"./{Path(sys.executable).name}").set_by_call == SET


# Several cases in one interpreter.


def test_no_case_sees_another(write: Write) -> None:
    text = """
import os, torch, transformers.models
seen = []
os.environ.setdefault("IMPORTED", "1")
fresh = not hasattr(torch.nn.Module, "mark") and not transformers.models.Thing.mark
torch.nn.Module.mark = transformers.models.Thing.mark = True
def f(args):
    seen.append(1)
    os.environ[args.name] = f"{len(seen)} {fresh}"
"""
    cases = [Case(name, {"FOR": name}, {"name": name}) for name in "AB"] + [Case("C", {"IMPORTED": "2"}, {"name": "C"})]
    effects = run_function_cases(write(text), "f", cases)
    assert [effect.environment for effect in effects] == [
        {"FOR": "A", "IMPORTED": "1", "A": "1 True"},
        {"FOR": "B", "IMPORTED": "1", "B": "1 True"},
        {"IMPORTED": "2", "C": "1 True"},
    ]
    assert [effect.child_environment is not None for effect in effects] == [True, False, False]


def test_all_cases_may_spawn(write: Write) -> None:
    cases = [Case("", {"A": value}) for value in "12"]
    effects = run_function_cases(write(ENGINE), FUNCTION, cases, spawn="all")
    assert [effect.child_environment for effect in effects] == [{"A": "1", **SET}, {"A": "2", **SET}]


def test_each_case_has_its_own_output(write: Write) -> None:
    text = "import os, sys\nprint('importing')\ndef f(args): print(args.word); os.write(2, b'raw\\n')"
    effects = run_function_cases(write(text), "f", [Case("", {}, {"word": word}) for word in ("one", "two")])
    assert [effect.output for effect in effects] == ["importing\none\nraw\n", "importing\ntwo\nraw\n"]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=8)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.just("not UTF-8: \udcff")


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=20))
def test_every_environment_arrives(write: Write, environments: list[dict[str, str]]) -> None:
    effects = run_function_cases(write("def f(args): pass"), "f", [Case("", env) for env in environments])
    assert [effect.environment for effect in effects] == environments
    assert effects[0].child_environment == environments[0]


# Effects that stay inside.


@pytest.mark.parametrize(
    "line",
    [
        "signal.signal(signal.SIGTERM, None); assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL",
        "os.kill(os.getppid(), signal.SIGKILL); os.killpg(0, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); open(os.devnull).close()",
        "multiprocessing.set_start_method('fork', force=True); multiprocessing.set_executable('/bin/false')",
        "multiprocessing.Process(target=print).start(); multiprocessing.get_context('spawn').Process().start()",
        "asyncio.set_event_loop_policy(object())",
        "atexit.register(print, 'printed at exit')",
        "os.setsid(); os.setpgid(0, 0); signal.alarm(1); time.sleep(0)",
        "assert tempfile.gettempdir() == '/tmp'",
        "threading.Thread(target=time.sleep, args=(100,)).start()",
        "open(os.devnull, 'w').write('x')",
    ],
)
def test_done_without_effect(run: Body, line: str) -> None:
    imports = "import asyncio, atexit, multiprocessing, os, resource, signal, tempfile, threading, time\n"
    effect = run(f"{imports}def f(args):\n    {line}\n    os.environ['DONE'] = '1'\n", spawn=True)
    assert effect == FunctionEffect({"DONE": "1"}, {"DONE": "1"}, {"DONE": "1"}, None, "")


@pytest.mark.parametrize(
    "line",
    [
        "open('PLACE/made', 'w')",
        "open('PLACE/engine.py', 'r+')",
        "os.open('PLACE/made', os.O_CREAT | os.O_RDWR)",
        "os.mkdir('PLACE/made')",
        "os.remove('PLACE/engine.py')",
        "os.rename('PLACE/engine.py', 'PLACE/made')",
        "pathlib.Path('PLACE/made').symlink_to('PLACE')",
        "shutil.rmtree('PLACE')",
        "tempfile.mkdtemp(dir='PLACE')",
        "logging.basicConfig(filename='PLACE/made')",
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.socket().bind(('127.0.0.1', 0))",
        "socket.socket().connect(('127.0.0.1', 9))",
        "subprocess.run(['touch', 'PLACE/made'])",
        "os.system('touch PLACE/made')",
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
    ],
)
def test_refused(run: Body, write: Write, line: str) -> None:
    place = write("").parent
    imports = "import logging, os, pathlib, shutil, socket, subprocess, tempfile\n"
    effect = run(f"{imports}def f(args):\n    {line.replace('PLACE', str(place))}\n")
    assert (effect.error or "").startswith("PermissionError: [Errno 1] the sandbox ")
    assert [path.name for path in place.iterdir()] == ["engine.py"]


def test_endless_output_ends(run: Body) -> None:
    effect = run("def f(args):\n    while True: print('x' * 1_000_000)")
    assert "File too large" in (effect.error or "")
    assert 0 < len(effect.output) <= 4000


def test_standard_input_is_empty(run: Body) -> None:
    assert (run("def f(args): input()").error or "").startswith("EOFError")


# What is not the standard library is a stub.


MODULES = """
import click, hypothesis.strategies, pytest
assert click.__version__ == '0.0.0' and not pytest.main()
---
import numpy as np
from numpy import float32
assert np.__version__ == '0.0.0' and not np.array([1])
---
from . import tokenizer
from .io_struct import A, B
from ..utils import c
---
try:
    import flash_attn
except ImportError:
    raise SystemExit('stubbed')
---
from zmq import *
from torch import *
x = POLLIN
def g(): return manual_seed(0)
assert not g()
---
import typing
from a import *
class typing_extra: pass
y = undefined_here(typing, typing_extra)
---
import torch
from torch import nn
import torch.nn.functional as F
assert torch.nn.Module is nn.Module
---
from a import Base, Mixin, Generic
class A(Base, Mixin[int], Generic['T']): pass
A(1, x=2).anything(3)
---
import abc
from a import B
class A(B, abc.ABC): pass
class C(B, metaclass=abc.ABCMeta): pass
A(); C()
---
class M(type): pass
from a import B
class A(B, metaclass=M, frozen=True): pass
assert type(A) is M
---
from a import M, B
class A(B, metaclass=M):
    def f(self): return __class__
assert A().f() is A
---
import enum
from a import Mixin
class E(Mixin, enum.Enum):
    A = 1
assert E(1) is E.A
---
from a import Base
class A(Base):
    def __init__(self): super().__init__(1, x=2)
assert isinstance(A(), Base) and isinstance(Base(), Base)
assert not isinstance(1, Base) and not isinstance(Base(), int)
---
from a import Base
class A(Base[int]): pass
assert isinstance(A(), Base) and issubclass(A, Base) and not issubclass(int, Base)
---
from a import T
assert isinstance(1, int | T) and not isinstance('', int | T) and isinstance(None, T | None)
---
from typing import Callable, Dict, List, Optional, Union
from a import T
x: Dict[str, Union[T, List[Optional[T]]]]
---
from typing import Callable
from a import T
x = T[int], T[int, ...], list[T], dict[str, T | None]
y: Callable[[T], T | None]
flags = T.A | T.B
---
import dataclasses
from a import D
@dataclasses.dataclass
class A:
    x: int = D
assert A().x is D
---
from __future__ import annotations
import dataclasses
from typing import ClassVar
@dataclasses.dataclass
class A:
    y: ClassVar[int] = 3
    x: B = 1
assert A(2).x == 2
---
from a import d
@d
def g(): return 1
@d.route('/x', y=1)
def h(): return 2
@d(1)
class C: pass
assert (g(), h(), C.__name__) == (1, 2, 'C')
---
from a import predicate
@predicate(lambda arch: 'x' in arch)
def g(): return 1
assert g() == 1
---
from a import x
assert list(x) == [] and not x and len(x) == 0 and int(x) == 0 and 'y' not in x and x[1:2] != x[0]
---
from a import capability
major, minor = capability()
a, *rest = capability()
assert not major >= 9 and rest == []
---
from a import n
assert not n() > 0 and n() <= 0 and n() < 8 and 8 > n() and not n() == 1 and n != 1 and n == n
---
from packaging import version
import torch
assert version.parse(torch.__version__) >= version.parse('2.5')
---
import torch
assert tuple(map(int, torch.__version__.split('.')[:2])) < (2, 6)
---
from a import x
y = (x + 1) * 2 - 1 / x ** -x // 3 % x @ x << 1
y += 1
y |= 2
assert not abs(~y) and not round(y, 1) and not 'text' + y
---
from a import x
with x.lock, x.open() as y:
    y.read()
x[0] = 1
del x[0]
x.y = 3
assert x.y == 3 and hasattr(x, 'z')
---
import copy, functools, os
from a import x
assert copy.deepcopy(x) is x and {x: 1}[x] == 1
functools.wraps(x)(lambda: 0)
os.path.join('a', x)
f'{x!r:>10} {x:.2f}' + str(x)
---
from a import WeirdError
class Mine(WeirdError, ValueError): pass
try:
    raise Mine('x', code=3)
except WeirdError as e:
    assert e.code == 3 and str(e) == 'x'
---
import warnings
from a import OldWarning
warnings.filterwarnings('ignore', category=OldWarning)
---
from pydantic import BaseModel, Field
class A(BaseModel):
    x: int = Field(default=1)
A.model_rebuild()
assert A(x=2).x == 2
---
import asyncio
from a import x
async def g():
    async with x as y:
        await x.z(y)
    async for _ in x: raise ValueError
asyncio.run(g())
---
import multiprocessing as mp
x: mp.connection.Connection
---
import importlib.util, sys
assert importlib.util.find_spec('torch')
assert __name__ == 'sglang.srt.entrypoints.engine' and __package__ == 'sglang.srt.entrypoints' and __file__
assert sys.modules[__name__].__dict__ is globals()
---
import sglang.srt.entrypoints.engine as me
assert me.__dict__ is globals()
---
assert __name__ != '__main__'
if __name__ == '__main__': raise SystemExit
"""


@pytest.mark.parametrize("text", MODULES.split("---\n"))
def test_modules_that_must_execute(run: Body, text: str) -> None:
    effect = run(text + "def f(args): pass\n")
    assert (effect.error, effect.output) == (None, "")


def test_torch_modules_are_strict_about_attributes(run: Body) -> None:
    text = """
import torch
from torch import nn
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 2)
        self.register_buffer("steps", 3, persistent=False)
    def forward(self, x): return x + self.steps
class Layer(nn.Linear): pass
def f(args):
    outer = Outer()
    assert isinstance(outer, torch.nn.Module) and issubclass(Layer, nn.Module) and outer(1) == 4
    assert hasattr(outer, "inner") and not hasattr(outer, "missing") and not hasattr(Layer(1, 2), "missing")
    outer.missing
"""
    assert (run(text).error or "").startswith("AttributeError: 'Outer' object has no attribute 'missing' (")


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfdef f(args):\r\n    pass\r\n", b"# coding: latin-1\ndef f(args): '\xe9'"]
)
def test_any_encoding(write: Write, data: bytes) -> None:
    source = write("")
    source.write_bytes(data)
    assert run_function(source, "f", env={}, spawn=False).error is None


@pytest.mark.parametrize("name", ["json.py", "signal.py", "with-dash.py", "__init__.py"])
def test_any_file_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("import json, signal, os\ndef f(args): os.environ['A'] = json.dumps(1)")
    assert run_function(tmp_path / name, "f", env={}).child_environment == {"A": "1"}


def test_the_child_uses_the_standard_library_only() -> None:
    package = Path(__file__).parent.parent / "patcher" / "sandbox"
    for name in ("child", "calling", "delegating", "execution", "finder", "guard", "stand_in", "stubs"):
        for node in ast.walk(ast.parse((package / f"{name}.py").read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert module.startswith("patcher.sandbox") or module.partition(".")[0] in sys.stdlib_module_names


# Delegation.

MODEL = """
from torch import nn
from typing import List, Optional
from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM

class Kimi(nn.Module):
    def __init__(self, config):
        raise RuntimeError("never called")

    def set_layers(self, layer_ids: Optional[List[int]] = None) -> None:
        if not hasattr(self.language_model, "set_layers"):
            raise AttributeError("language_model does not support set_layers()")
        self.language_model.set_layers(layer_ids)

    def get_head(self):
        if self.language_model is None:
            raise AttributeError("no language_model")
        return self.language_model.get_head()

EntryClass = [Kimi]
"""
CALLS = [Call("set_layers", [[1, 2]]), Call("set_layers"), Call("get_head")]


def delegate(source: Path, inner: str = "recording", calls: list[Call] | None = None) -> DelegationEffect:
    options = {"inner": inner, "calls": CALLS if calls is None else calls}
    return run_delegation(source, "Kimi", inner_attribute="language_model", **options)  # type: ignore[arg-type]


def test_what_the_inner_object_receives_and_returns(write: Write) -> None:
    effect = delegate(write(MODEL))
    assert (effect.error, effect.output) == (None, "")
    assert [[(call.method, call.args, call.kwargs) for call in effect.received] for effect in effect.calls] == [
        [("set_layers", [[1, 2]], {})],
        [("set_layers", [None], {})],
        [("get_head", [], {})],
    ]
    assert [(call.returned, call.error) for call in effect.calls] == [("none", None), ("none", None), ("same", None)]


@pytest.mark.parametrize(
    ("inner", "messages"),
    [
        ("none", ["language_model does not support set_layers()", "no language_model"]),
        ("missing", ["'Kimi' object has no attribute 'language_model'"] * 2),
        (
            "without-methods",
            ["language_model does not support set_layers()", "'WithoutMethods' object has no attribute 'get_head'"],
        ),
    ],
)
def test_an_inner_object_that_is_not_fit(write: Write, inner: str, messages: list[str]) -> None:
    effect = delegate(write(MODEL), inner, CALLS[1:])
    assert [call.error_type for call in effect.calls] == ["AttributeError"] * 2
    for call, message in zip(effect.calls, messages, strict=True):
        assert (call.error or "").startswith(f"AttributeError: {message} ({write(MODEL)}:")
        assert (call.defined, call.received, call.returned) == (True, (), None)


@pytest.mark.parametrize(
    ("after", "returned"),
    [
        ("Kimi.get_head = lambda self: None", "none"),
        ("Kimi.get_head = lambda self: (1, 2)", "other"),
        ("class Kimi(Kimi):\n    def get_head(self): return (0, 0)", "other"),
        ("class Kimi(Kimi):\n    def get_head(self): a, b = super().get_head(); return [a, b]", "equal"),
        ("class Kimi(Kimi):\n    def get_head(self): super().get_head(); return super().get_head()", "same"),
        ("class Kimi(Kimi):\n    def get_head(self): return 1\n    get_head = Kimi.get_head", "same"),
        ("import functools\nKimi.get_head = functools.lru_cache(Kimi.get_head)", "same"),
    ],
)
def test_a_method_that_is_shadowed(write: Write, after: str, returned: str) -> None:
    assert delegate(write(MODEL + after), calls=[Call("get_head")]).calls[0].returned == returned


def test_a_method_that_is_not_there(write: Write) -> None:
    (call,) = delegate(write(MODEL.replace("get_head", "got_head")), calls=[Call("get_head")]).calls
    assert (call.defined, call.error) == (False, "AttributeError: 'Kimi' object has no attribute 'get_head'")


@pytest.mark.parametrize("base", ["DeepseekV3ForCausalLM", "DeepseekV3ForCausalLM, nn.Module", "nn.Linear", "object"])
def test_any_base_leaves_a_missing_attribute_missing(write: Write, base: str) -> None:
    (call,) = delegate(write(MODEL.replace("nn.Module", base)), "missing", [Call("get_head")]).calls
    assert (call.error or "").startswith("AttributeError: 'Kimi' object has no attribute 'language_model'")


def test_attributes_of_the_class_itself_work(write: Write) -> None:
    body = """
    @property
    def model(self): return self.language_model
    def __setattr__(self, name, value):
        if name != "model": super().__setattr__(name, value)
    def via_model(self, *, embed): self.model.set_head(embed, extra=(1, object))
"""
    text = MODEL.replace("\nEntryClass", body + "\nEntryClass")
    (call,) = delegate(write(text), calls=[Call("via_model", kwargs={"embed": "e"})]).calls
    assert [(got.args, got.kwargs) for got in call.received] == [(["e"], {"extra": [1, "<class 'object'>"]})]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import ("),
        ("", "NameError: Kimi is not a class of this file: None once"),
        ("from sglang.srt.models.kimi import Kimi", "NameError: Kimi is not a class of this file: <stub "),
        ("def Kimi(): pass", "TypeError: object.__new__(X): X is not a type object"),
        ("class Kimi:\n    language_model = property(lambda self: 1)", "AttributeError: "),
    ],
)
def test_no_instance_no_calls(write: Write, text: str, error: str) -> None:
    effect = delegate(write(text))
    assert (effect.calls, (effect.error or "").startswith(error)) == ((), True), effect


def test_a_model_that_hangs(write: Write) -> None:
    source = write("while True: pass")
    effect = run_delegation(source, "Kimi", inner_attribute="language_model", calls=CALLS, timeout=0.3)
    assert effect == DelegationEffect((), "no answer within 0.3 s; the interpreter was stopped", "")


def test_the_sandbox_works_from_a_folder_that_cannot_be_written(write: Write, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(Path(__file__).parent.parent / "patcher", copy / "patcher", ignore=shutil.ignore_patterns("*.pyc"))
    before = sorted(copy.rglob("*"))
    assert run_function(write(ENGINE), FUNCTION, env={}).error is None
    assert sorted(copy.rglob("*")) == before
