"""EAGLE-3 for any wrapper that holds a causal language model: the three methods, each handed on to the inner model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from patcher.patch import Candidate, Edit, Family, Finding, Outcome, Params, Patch, State
from patcher.probe import DelegationProbe, Inner, MethodCall, Probe
from patcher.source import Source
from patcher.target import Target
from patcher.transforms.method import Method

if TYPE_CHECKING:
    from patcher.wrappers import NoWrapper, Wrapper

ID = "eagle3-delegation"

METHODS = (
    # The model runner calls it with layer ids at start, and without any in its warm-up.
    Method(
        "set_eagle3_layers_to_capture",
        parameters=(("layer_ids", "Optional[List[int]]", "None"),),
        doc="Choose the layers whose hidden states EAGLE-3 drafts from.",
    ),
    # The EAGLE worker asks the target model for its weights, which the draft model shares.
    Method(
        "get_embed_and_head",
        returns="Tuple[torch.Tensor, torch.Tensor]",
        doc="Return the embedding and output head that the draft model shares.",
    ),
    Method(
        "set_embed_and_head",
        parameters=(("embed", "torch.Tensor", None), ("head", "torch.Tensor", None)),
        doc="Replace the embedding and output head.",
    ),
)


def add_methods(source: Source, class_name: str, inner: str, patch_id: str, *, proved: bool = False) -> Outcome:
    """Add the methods to the end of a wrapper class; each hands its call to `self.<inner>`, see `delegate`."""
    from patcher.transforms.delegation import delegate

    comment = [f"sglang-patch: {patch_id}", "EAGLE-3 calls these on the wrapper; the language model has them."]
    return delegate(source, class_name=class_name, to=inner, methods=METHODS, comment=comment, proved=proved)


def delegation_probes(class_name: str, inner: str) -> list[Probe]:
    """Call the methods as SGLang does, and on wrappers whose inner model cannot take the call."""
    calls = [
        MethodCall("set_eagle3_layers_to_capture", ([2, 30, 58],)),
        MethodCall("set_eagle3_layers_to_capture"),
        MethodCall("get_embed_and_head", returns=True),
        MethodCall("set_embed_and_head", ("embed", "head")),
    ]
    kinds: dict[str, Inner] = {f"no {inner}": "missing", "None": "none", "one without the methods": "without-methods"}
    return [
        DelegationProbe(f"each call reaches {inner}", class_name, inner, calls),
        *(DelegationProbe(f"{name} is said clearly", class_name, inner, calls, kind) for name, kind in kinds.items()),
    ]


def find(target: Target, model: str, source: Source | None = None) -> Wrapper | NoWrapper:
    """The wrapper that a name means on a target, with `source` in place of its own file's bytes."""
    from patcher.wrappers import Wrappers, model_files

    def read(path: str) -> bytes | None:
        return source.data if source is not None and path == source.path else target.read(path)

    return Wrappers(read, model_files(target)).find(model)


def instance(target: Target, model: str) -> Patch:
    """The patch for one wrapper of a target, named by its file's stem or by its class."""
    patch_id = f"{ID}:{model}"

    def rewrite(source: Source, params: Params) -> Outcome:
        from patcher.wrappers import NoWrapper

        wrapper = find(target, model, source)
        if isinstance(wrapper, NoWrapper):
            return Finding(State.CONFLICT, wrapper.reason, expected=" or ".join(wrapper.names) or None)
        if wrapper.verdict == "fits" and wrapper.inner:
            return add_methods(source, wrapper.class_name, wrapper.inner, patch_id, proved=True)
        state = {"upstream": State.UPSTREAM, "partial": State.PARTIAL}.get(wrapper.verdict, State.CONFLICT)
        return Finding(state, f"{wrapper.class_name}: {wrapper.reason}", wrapper.line, path=wrapper.file)

    def probes(params: Params) -> list[Probe]:
        from patcher.wrappers import NoWrapper

        wrapper = find(target, model)
        if isinstance(wrapper, NoWrapper) or not wrapper.inner:
            return []
        return delegation_probes(wrapper.class_name, wrapper.inner)

    if (target.path / f"srt/models/{model}.py").is_file():
        edit = Edit((f"srt/models/{model}.py",), rewrite)
    else:
        edit = Edit((), rewrite, anchor=f"class {model}(", missing=_missing(find(target, model)))
    return replace(
        PATCH,
        id=patch_id,
        summary=f"EAGLE-3 speculative decoding for {model}",
        edits=(edit,),
        probes=probes,
        fixed={"model": model},
        family=None,
    )


def _missing(found: Wrapper | NoWrapper) -> str | None:
    """What to say about a name that means no file and no class."""
    names = getattr(found, "names", ())
    return f"{found.reason}; did you mean {' or '.join(names)}?" if names else found.reason


def candidates(target: Target) -> Sequence[Candidate]:
    """Every wrapper of the target, those that fit first."""
    from patcher.wrappers import Verdict, survey

    order = list(Verdict)
    wrappers = sorted(survey(target), key=lambda one: order.index(one.verdict))
    stems = [one.stem for one in wrappers]
    names = [one.stem if stems.count(one.stem) == 1 else one.class_name for one in wrappers]
    return [
        Candidate(name, one.class_name, str(one.verdict), one.reason) for name, one in zip(names, wrappers, strict=True)
    ]


PATCH = Patch(
    id=ID,
    revision=1,
    summary="EAGLE-3 speculative decoding for a wrapper of your choice (--set model=NAME)",
    why=(
        "EAGLE-3 asks the target model for three methods. Many multimodal classes wrap a language model that has them,"
        " but do not hand the calls on, so the server stops at start-up. Before anything is written it is proved from"
        " the tree that the inner class has the methods, and that the wrapper's forward goes through the inner forward."
    ),
    upstream="class by class, in many releases",
    retire="when status says `upstream` for each of its instances",
    limits=(
        "Proved is the way of the calls and of the captured states; whether a drafter is good is yours to see.",
        "Context-parallel prefill of 0.5.23 reads a flag on the wrapper itself, which delegation does not set there.",
    ),
    edits=(),
    family=Family("model", instance, candidates),
)
