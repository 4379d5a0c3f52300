from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher.launchers import LaunchPath, launch_paths
from patcher.target import Target

Tree = Callable[[dict[str, str]], Target]

ENGINE = "srt/entrypoints/engine.py"
ENGINE_SOURCE = """
    import multiprocessing as mp
    from sglang.srt.managers.scheduler import run_scheduler_process, run_detokenizer_process
    from sglang.srt.managers.data_parallel_controller import run_data_parallel_controller_process

    class Engine:
        run_scheduler = staticmethod(run_scheduler_process)

        def __init__(self, **kwargs):
            self.parts = self._launch_subprocesses(kwargs["server_args"], self.run_scheduler)

        @classmethod
        def _launch_scheduler_processes(cls, server_args, run_scheduler):
            if server_args.dp_size == 1:
                for tp_rank in range(server_args.tp_size):
                    target, args = run_scheduler, (server_args, tp_rank)
                    mp.Process(target=target, args=args).start()
            else:
                mp.Process(target=run_data_parallel_controller_process, args=(server_args,)).start()

        @classmethod
        def _launch_subprocesses(cls, server_args, run_scheduler):
            _set_envs_and_config(server_args)
            cls._launch_scheduler_processes(server_args, run_scheduler)
            mp.Process(target=run_detokenizer_process, args=(server_args,)).start()

    def _set_envs_and_config(server_args):
        pass
"""
SCHEDULER = """
    def run_scheduler_process(server_args, tp_rank):
        pass

    def run_detokenizer_process(server_args):
        pass
"""
CONTROLLER = """
    import multiprocessing as mp
    import threading
    from sglang.srt.managers.scheduler import run_scheduler_process

    class DataParallelController:
        def __init__(self, server_args, run_scheduler=run_scheduler_process):
            self.run_scheduler = run_scheduler
            self.launch_dp_schedulers(server_args)

        def launch_dp_schedulers(self, server_args):
            for dp_rank in range(server_args.dp_size):
                threading.Thread(target=self.launch_group, args=(server_args, dp_rank)).start()

        def launch_group(self, server_args, dp_rank):
            mp.Process(target=self.run_scheduler, args=(server_args, dp_rank)).start()

    def run_data_parallel_controller_process(server_args, controller=DataParallelController):
        controller(server_args)
"""
HTTP = """
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.scheduler import run_scheduler_process

    def launch_server(server_args, run_scheduler=run_scheduler_process):
        Engine._launch_subprocesses(server_args, run_scheduler)
"""
SERVING = {
    ENGINE: ENGINE_SOURCE,
    "srt/managers/scheduler.py": SCHEDULER,
    "srt/managers/data_parallel_controller.py": CONTROLLER,
    "srt/entrypoints/http_server.py": HTTP,
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes a package `sglang` of these files; each source may be indented."""

    def write(files: dict[str, str]) -> Target:
        for name, source in files.items():
            path = tmp_path / "sglang" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source).lstrip("\n"))
        return Target(tmp_path / "sglang")

    return write


def covered(paths: list[LaunchPath]) -> list[tuple[str, bool | None]]:
    return [(path.name, path.covered) for path in paths]


def only(paths: list[LaunchPath]) -> LaunchPath:
    (path,) = paths
    return path


def test_server_engine_and_controller_pass_through_it(tree: Tree) -> None:
    paths = launch_paths(tree(SERVING))
    assert covered(paths) == [("Engine", True), ("HTTP server", True), ("data-parallel controller", True)]


def test_the_evidence_is_where_it_is_called_and_where_workers_are_started(tree: Tree) -> None:
    engine = launch_paths(tree(SERVING))[0]
    assert (engine.file, engine.line) == (ENGINE, 8)
    assert engine.reason == (
        f"workers are started at {ENGINE}:16; _set_envs_and_config is called at {ENGINE}:22 before that"
    )


def test_a_process_that_starts_workers_inherits_from_whoever_starts_it(tree: Tree) -> None:
    controller = launch_paths(tree(SERVING))[-1]
    assert controller.reason == (
        "workers are started at srt/managers/data_parallel_controller.py:15, in a process that is started at"
        f" {ENGINE}:18 and inherits its environment; _set_envs_and_config is called at {ENGINE}:22 before that"
    )


def test_a_launcher_of_its_own_is_named_and_so_is_what_it_starts(tree: Tree) -> None:
    launcher = """
        import multiprocessing as mp
        from sglang.srt.managers.data_parallel_controller import run_data_parallel_controller_process as run_controller
        from sglang.srt.managers.scheduler import run_scheduler_process

        def launch_scheduler_process_only(server_args):
            for tp_rank in range(server_args.tp_size):
                mp.Process(target=run_scheduler_process, args=(server_args, tp_rank)).start()
            mp.Process(target=run_controller, args=(server_args,)).start()
    """
    server = """
        from sglang.srt.grpc.scheduler_launcher import launch_scheduler_process_only

        async def serve_grpc(server_args):
            launch_scheduler_process_only(server_args)
    """
    files = {"srt/grpc/scheduler_launcher.py": launcher, "srt/entrypoints/grpc_server.py": server}
    assert covered(launch_paths(tree(SERVING | files))) == [
        ("Engine", True),
        ("HTTP server", True),
        ("data-parallel controller", False),
        ("data-parallel controller", True),
        ("gRPC server", False),
    ]


RAY = {
    "srt/ray/actor.py": """
        import ray

        @ray.remote
        class SchedulerActor:
            def __init__(self, server_args, tp_rank):
                pass
    """,
    "srt/ray/engine.py": """
        import ray
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.ray.actor import SchedulerActor

        class RayEngine(Engine):
            @classmethod
            def _launch_scheduler_processes(cls, server_args, run_scheduler):
                @ray.remote
                def node():
                    return 1

                node.remote()
                for tp_rank in range(server_args.tp_size):
                    SchedulerActor.options(num_gpus=1).remote(server_args, tp_rank)
    """,
    "srt/ray/http_server.py": """
        from sglang.srt.ray.engine import RayEngine

        def launch_server(server_args):
            RayEngine._launch_subprocesses(server_args, None)
    """,
}


def test_ray_actors_do_not_get_the_environment_of_the_driver(tree: Tree) -> None:
    """The Ray server calls the function and its engine has a method of its own: no local worker is started by it."""
    paths = launch_paths(tree(SERVING | RAY))
    assert covered(paths) == [
        ("Engine", True),
        ("HTTP server", True),
        ("Ray actors", False),
        ("data-parallel controller", True),
    ]
    assert paths[2].reason == (
        "workers are started at srt/ray/engine.py:14 as Ray actors (srt/ray/actor.py:4); Ray's processes do not inherit"
        " what the driver sets, and _set_envs_and_config is not called in them"
    )


@pytest.mark.parametrize(
    ("before", "after", "evidence"),
    [
        ("pass", "_set_envs_and_config(server_args)", "in the actor itself"),
        ("options(num_gpus=1)", "options(runtime_env={})", "runtime_env"),
    ],
)
def test_actors_with_an_environment_of_their_own(tree: Tree, before: str, after: str, evidence: str) -> None:
    imported = f"from {ENGINE[:-3].replace('srt/', 'sglang.srt.').replace('/', '.')} import _set_envs_and_config\n"
    ray = {name: source.replace(before, after) for name, source in RAY.items()}
    ray["srt/ray/actor.py"] = imported + textwrap.dedent(ray["srt/ray/actor.py"])
    (actors,) = [path for path in launch_paths(tree(SERVING | ray)) if path.name == "Ray actors"]
    assert actors.covered is None
    assert evidence in actors.reason


def test_an_entry_point_of_another_package_cannot_be_told(tree: Tree) -> None:
    wrapper = """
        async def serve_grpc(server_args):
            from smg_grpc_servicer.sglang.server import serve_grpc as serve

            await serve(server_args)
    """
    path = only(launch_paths(tree({"srt/entrypoints/grpc_server.py": wrapper})))
    assert (path.name, path.line, path.covered) == ("gRPC server", 1, None)
    assert "smg_grpc_servicer.sglang.server (imported at srt/entrypoints/grpc_server.py:2)" in path.reason


def test_the_encoder_beside_the_http_server(tree: Tree) -> None:
    """A branch that starts the covered server covers no other branch."""
    files = {
        "launch_server.py": """
            def run_server(server_args):
                if server_args.encoder_only:
                    from sglang.srt.disaggregation.encode_server import launch_server

                    launch_server(server_args)
                else:
                    from sglang.srt.entrypoints.http_server import launch_server

                    launch_server(server_args)

            if __name__ == "__main__":
                run_server(None)
        """,
        "srt/disaggregation/encode_server.py": """
            import multiprocessing

            def launch_encoder(server_args, rank):
                pass

            def launch_server(server_args):
                ctx = multiprocessing.get_context("spawn")
                for rank in range(1, server_args.tp_size):
                    ctx.Process(target=launch_encoder, args=(server_args, rank), daemon=True).start()
        """,
    }
    assert ("encoder-only server", False) in covered(launch_paths(tree(SERVING | files)))


BENCH = """
    import multiprocessing
    from sglang.srt.entrypoints.engine import _set_envs_and_config as prepare

    def latency_test(server_args, tp_rank):
        pass

    def spawn(server_args, tp_rank):
        multiprocessing.Process(target=latency_test, args=(server_args, tp_rank)).start()

    def ready(server_args):
        if server_args.quick:
            return
        prepare(server_args)

    def always(server_args):
        with server_args:
            prepare(server_args)

    def main(server_args, tp_rank):
"""


def bench(body: str) -> dict[str, str]:
    return {
        ENGINE: "def _set_envs_and_config(server_args):\n    pass\n",
        "bench_one_batch.py": textwrap.dedent(BENCH) + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n",
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("prepare(a); spawn(a, 0)", True),
        ("always(a); spawn(a, 0)", True),
        ("spawn(a, 0); prepare(a)", False),
        ("spawn(a, 0)", False),
        ("if a: prepare(a)\nspawn(a, 0)", None),
        ("ready(a); spawn(a, 0)", None),
        ("a or prepare(a)\nspawn(a, 0)", None),
        ("for b in a: prepare(b)\nspawn(a, 0)", None),
        ("if a:\n    prepare(a)\nelse:\n    spawn(a, 0)", False),
        ("if a:\n    prepare(a)\n    spawn(a, 0)", True),
        ("if prepare(a):\n    spawn(a, 0)", True),
        ("for b in a:\n    prepare(b)\n    spawn(b, 0)", True),
        ("try:\n    prepare(a)\nexcept OSError:\n    pass\nspawn(a, 0)", None),
        ("try:\n    prepare(a)\nexcept OSError:\n    raise\nspawn(a, 0)", True),
        ("try:\n    prepare(a)\nexcept OSError:\n    spawn(a, 0)", None),
        ("try:\n    prepare(a)\nfinally:\n    a.close()\nspawn(a, 0)", True),
        ("match a:\n    case 1: prepare(a)\n    case 2: spawn(a, 0)", False),
        ("def later():\n    spawn(a, 0)\nprepare(a)\nlater()", None),
        ("def later():\n    prepare(a)\nspawn(a, 0)", None),
        ("callbacks = [prepare]\nspawn(a, 0)", False),
    ],
)
def test_what_runs_before(tree: Tree, body: str, expected: bool | None) -> None:
    path = only(launch_paths(tree(bench(body))))
    assert (path.name, path.covered) == ("bench_one_batch", expected)


STEP = """
    import multiprocessing as mp
    from sglang.srt.entrypoints.engine import _set_envs_and_config

    def work(server_args, tp_rank):
        pass

    {how}
"""


def step(how: str) -> dict[str, str]:
    source = textwrap.dedent(STEP).replace("{how}", textwrap.dedent(how))
    return {ENGINE: "def _set_envs_and_config(server_args):\n    pass\n", "srt/fork.py": source}


LAUNCH = "def launch(a):\n    mp.Process(target=work, args=(a, 0)).start()\n"


@pytest.mark.parametrize(
    ("how", "expected", "evidence"),
    [
        (LAUNCH, False, "is not called before that"),
        (LAUNCH + "def main(a):\n    _set_envs_and_config(a)\n    launch(a)", True, "srt/fork.py:10 before that"),
        (
            LAUNCH + "if __name__ == '__main__':\n    _set_envs_and_config(1)\n    launch(1)",
            True,
            "srt/fork.py:10 before that",
        ),
        (LAUNCH.replace("launch", "_launch"), None, "what calls _launch is not found"),
        (
            LAUNCH.replace("launch", "_launch") + "def main(register):\n    register(_launch)",
            None,
            "_launch is handed on at srt/fork.py:10",
        ),
        (
            LAUNCH.replace("target=work", "target=begin")
            + "def begin(a, tp_rank):\n    _set_envs_and_config(a)\n    work(a, tp_rank)",
            None,
            "in the worker itself, perhaps too late",
        ),
        ("def launch(a):\n    mp.spawn(work, nprocs=2)", False, "started at srt/fork.py:8;"),
        (
            "import subprocess\ndef launch(a):\n    cmd = ['-m', 'x', '--tp-rank', '0']\n    subprocess.Popen(cmd)",
            False,
            "started at srt/fork.py:10;",
        ),
    ],
)
def test_ways_that_a_fork_may_have(tree: Tree, how: str, expected: bool | None, evidence: str) -> None:
    path = only(launch_paths(tree(step(how))))
    assert path.covered is expected
    assert evidence in path.reason


def test_only_some_of_what_calls_a_launcher_is_covered(tree: Tree) -> None:
    above = """
        from sglang.srt.entrypoints.engine import _set_envs_and_config
        from sglang.srt.fork import launch

        def ready(a):
            _set_envs_and_config(a)
            launch(a)
    """
    files = {"srt/good.py": above, "srt/bad.py": above.replace("            _set_envs_and_config(a)\n", "")}
    path = only(launch_paths(tree(step(LAUNCH) | files)))
    assert (path.name, path.covered) == ("launch", None)
    assert "srt/good.py:5 before that, but not on every way that leads there" in path.reason
    assert only(launch_paths(tree(step(LAUNCH) | files | {"srt/bad.py": above}))).covered is True


@pytest.mark.parametrize(
    "source",
    [
        "import psutil\ndef look(rank_of):\n    psutil.Process(rank_of.pid)",
        "import multiprocessing as mp\ndef serve(a):\n    pass\ndef go(a):\n    mp.Process(target=serve, args=(a,))",
        "import multiprocessing as mp\ndef wait(rank):\n    pass\ndef set_env(rank):\n    mp.Process(target=wait)",
        "import subprocess\ndef go(command):\n    subprocess.Popen(command)",
        "import ray\n@ray.remote\nclass Bench:\n    def __init__(self, args): ...\ndef go(a):\n    Bench.remote(a)",
    ],
)
def test_what_is_no_worker(tree: Tree, source: str) -> None:
    assert launch_paths(tree({"srt/other.py": source})) == []


def test_a_subclass_that_starts_workers_in_its_own_way(tree: Tree) -> None:
    """The base calls what the subclass overrides, so the base's call covers it; the HTTP server builds the base."""
    fork = """
        import multiprocessing as mp
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.managers.scheduler import run_scheduler_process

        class MyEngine(Engine):
            @classmethod
            def _launch_scheduler_processes(cls, server_args, run_scheduler):
                mp.Process(target=run_scheduler_process, args=(server_args, 0)).start()
    """
    paths = launch_paths(tree(SERVING | {"srt/fork.py": fork}))
    assert covered(paths) == [("Engine", True), ("HTTP server", True), ("data-parallel controller", True)]
    assert "srt/fork.py:8" in paths[0].reason
    assert "srt/fork.py:8" not in paths[1].reason


def test_the_function_in_another_file_or_as_a_method(tree: Tree) -> None:
    moved = {
        "srt/setup.py": "class Setup:\n    @staticmethod\n    def prepare(args):\n        pass\n",
        "srt/fork.py": """
            import multiprocessing as mp
            from sglang.srt import setup

            def work(args, tp_rank):
                pass

            def launch(args):
                setup.Setup.prepare(args)
                mp.Process(target=work, args=(args, 0)).start()
        """,
    }
    module = moved | {"srt/setup.py": "def prepare(args):\n    pass\n"}
    module["srt/fork.py"] = moved["srt/fork.py"].replace("setup.Setup.prepare", "setup.prepare")
    assert only(launch_paths(tree(module), "prepare", "srt/setup.py")).covered is True
    assert only(launch_paths(tree(module), "prepare")).covered is True
    assert only(launch_paths(tree(module), "prepare", "srt/fork.py")).covered is False
    from_class = moved["srt/fork.py"].replace("sglang.srt import setup", "sglang.srt.setup import Setup")
    from_class = from_class.replace("setup.Setup.prepare", "Setup.prepare")
    assert only(launch_paths(tree(moved | {"srt/fork.py": from_class}), "prepare")).covered is True


def test_a_tree_without_the_function_says_so(tree: Tree) -> None:
    path = only(launch_paths(tree({"srt/fork.py": textwrap.dedent(STEP).replace("{how}", LAUNCH)})))
    assert path.covered is False
    assert path.reason.endswith("there is no _set_envs_and_config in this tree")


def test_tests_and_files_that_do_not_parse_are_passed_over(tree: Tree) -> None:
    fork = textwrap.dedent(STEP).replace("{how}", LAUNCH)
    files = {"test/runner.py": fork, "srt/x/tests/a.py": fork, "srt/test_x.py": fork, "srt/bad.py": fork + "def ("}
    assert launch_paths(tree(files)) == []


def test_a_call_that_goes_round_in_circles_ends(tree: Tree) -> None:
    round_and_round = LAUNCH.replace("launch", "_a") + "    _b(a)\ndef _b(a):\n    _a(a)\n"
    assert {path.covered for path in launch_paths(tree(step(round_and_round)))} == {None}
