"""The outermost modules that training calls: found after the first step, and only those are hooked.

Global hooks would reach into compiled graphs, and cost something in every layer. Here a compiled module is watched from
outside, and a module within a compiled function not at all.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .nested import tensors_in
from .session import Session, is_compiling
from .sites import made_at, nearest

Handles = list[Any]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


def install(session: Session) -> None:
    session.around(torch.nn.Module, "__init__", _make)
    session.around(torch.nn.Module, "train", _switch)
    session.around(torch.nn.Module, "zero_grad", zero_grad)
    session.around(torch, "compile", _compile)
    for name in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        session.around(torch.nn.Module, name, _add_hook)


def _make(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if session.index == 0:
        with contextlib.suppress(TypeError):
            session.module_sites[id(self)] = (weakref.ref(self), made_at(self))


def _switch(session: Session, original: Callable[..., Any], self: Any, mode: bool = True) -> Any:
    if id(self) in session.tops:
        if not mode:
            session.enter_validation(nearest())
        elif len(session.engines) < 2:
            session.leave_validation()
    return original(self, mode)


def zero_grad(session: Session, original: Callable[..., Any], self: Any, set_to_none: bool = True) -> Any:
    """Timed as a part of the optimizer's, and noted with its place if it writes zeros."""
    session.line.push("optimizer")
    start = time.perf_counter()
    try:
        return original(self, set_to_none)
    finally:
        session.line.pop()
        if not set_to_none:
            session.called("zero_grad", nearest(), time.perf_counter() - start)


def _add_hook(session: Session, original: Callable[..., Any], self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_own(hook):
        session.called("hook", nearest())
    return original(self, hook, *args, **kwargs)


def _is_own(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(str(__package__))


def count_hooks(session: Session) -> int:
    """Hooks of the script on the modules of its networks."""
    modules = {id(module): module for root, _ in session.roots for module in root.modules()}.values()
    hooks = (vars(each).get(name) or {} for each in modules for name in _HOOKS)
    return sum(not _is_own(hook) for group in hooks for hook in list(group.values()))


def _compile(session: Session, original: Callable[..., Any], model: Any = None, *args: Any, **kwargs: Any) -> Any:
    if model is None:
        decorate = original(model, *args, **kwargs)

        def decorated(function: Any) -> Any:
            session.compiled_functions += not isinstance(function, torch.nn.Module)
            return decorate(function)

        return decorated
    session.compiled_functions += not isinstance(model, torch.nn.Module)
    return original(model, *args, **kwargs)


def site_of_module(session: Session, module: Any) -> str:
    ref, site = session.module_sites.get(id(module), (lambda: None, ""))
    if ref() is module and site:
        return str(site)
    inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
    return site_of_module(session, inner) if inner is not None and inner is not module else ""


def find_roots(session: Session) -> None:
    """Find, after the first step, the outermost modules above the optimizers' weights, and their children."""
    parameter_ids = {
        id(p) for optimizer, _ in session.optimizers for group in optimizer.param_groups for p in group["params"]
    }
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    inner = {id(child) for each in modules for child in vars(each).get("_modules", {}).values() if child is not None}
    outer = [each for each in modules if id(each) not in inner]
    tops = [each for each in outer if _holds(each, parameter_ids)]
    session.tops = {id(inner) for each in tops for inner in _wrapped(each)}
    wrappers = ("OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
    for top in tops:
        compiled = type(top).__name__ == "OptimizedModule" or getattr(top, "_compiled_call_impl", None) is not None
        if compiled or not session.compiled_functions:
            _hook(session, top)
        if type(top).__name__ not in wrappers and not compiled:
            for child in top.children():
                inside = type(child).__name__ == "OptimizedModule"
                if _holds(child, parameter_ids) and (inside or not session.compiled_functions):
                    _hook(session, child)
    session.candidates = tops
    for each in (*outer, *(child for top in tops for child in top.children())):
        # Such as a teacher. Losses and buffers have no weights.
        if not session.compiled_functions and not _holds(each, parameter_ids) and _has_gradients(each):
            with contextlib.suppress(Exception):  # A scripted module may refuse.
                session.strangers[id(each)] = (each, _register_stranger(session, each))
    convolutions = (m for top in tops for m in top.modules() if isinstance(m, torch.nn.modules.conv._ConvNd))
    session.conv_sites = {id(module): site_of_module(session, module) for module in convolutions}


def _wrapped(module: Any) -> Iterator[Any]:
    """A module, and what it wraps: users switch either one to evaluation."""
    while module is not None:
        yield module
        parts = vars(module).get("_modules", {})
        module = parts.get("_orig_mod") or parts.get("module")


def _holds(module: Any, parameter_ids: set[int]) -> bool:
    try:
        return any(id(p) in parameter_ids for p in module.parameters())
    except Exception:
        return False  # Whatever somebody's own module does here, it is not the network.


def _hook(session: Session, module: Any) -> None:
    compiled = getattr(module, "_compiled_call_impl", None)
    if compiled is not None:
        # `module.compile()` would trace hooks, so its compiled call is wrapped instead.
        def call(*args: Any, **kwargs: Any) -> Any:
            _before(session, module, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            finally:
                _after(session, module)

        module._compiled_call_impl = call
        session.hooked[id(module)] = (module, [])
        return
    with contextlib.suppress(Exception):  # A scripted module may refuse.
        session.hooked[id(module)] = (module, _register(session, module))


def _register(session: Session, module: Any) -> Handles:
    return [
        module.register_forward_pre_hook(lambda m, args, kwargs: _before(session, m, args, kwargs), with_kwargs=True),
        module.register_forward_hook(lambda m, args, result: _after(session, m, result), always_call=True),
    ]


def _has_gradients(module: Any) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _register_stranger(session: Session, module: Any) -> Handles:
    def note(m: Any, args: Any, result: Any) -> None:
        if is_compiling() or not session.live() or session.validating is not None:
            return
        if any(each.requires_grad for each in tensors_in(result)) and _has_gradients(m):
            session.called("needless_graph", nearest())

    return [module.register_forward_hook(note)]


def keep_called(session: Session) -> None:
    """Keep hooks, after the second step, only on modules that were called, and not from within another one."""
    for key, (module, handles) in list(session.hooked.items()):
        if key in session.outermost:
            session.roots.append((module, site_of_module(session, module)))
        else:
            for handle in handles:
                handle.remove()
            del session.hooked[key]
    if not session.roots:
        session.roots = [(top, site_of_module(session, top)) for top in session.candidates]
    session.candidates = []


@contextlib.contextmanager
def hooks_off(session: Session) -> Iterator[None]:
    """The modules inside are as their owner made them."""
    kinds = ((session.hooked, _register), (session.strangers, _register_stranger))
    for hooked, _ in kinds:
        for _, handles in hooked.values():
            for handle in handles:
                handle.remove()
    try:
        yield
    finally:
        for hooked, register in kinds:
            for key, (module, handles) in hooked.items():
                if handles:
                    hooked[key] = (module, register(session, module))


def _counts(session: Session, module: Any) -> bool:
    """Not where a backward pass runs it again, as `torch.utils.checkpoint` does."""
    counts = not is_compiling() and session.live() and id(module) in session.hooked
    return counts and "backward" not in session.line.stack


def _before(session: Session, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _counts(session, module):
        return
    session.depth += 1
    if session.depth > 1:
        return
    session.outermost.add(id(module))
    session.repeated_at = time.perf_counter() if _is_repeated(session, module, args) else 0.0
    if not torch.is_grad_enabled() and not session.repeated_at:
        session.enter_validation(nearest())
    elif session.validating is not None and module.training:
        session.leave_validation()
    session.sync()
    session.line.push("forward")
    if session.validating is None:
        _describe(session, module, args, kwargs)


def _after(session: Session, module: Any, result: Any = None) -> None:
    if not _counts(session, module) or session.depth == 0:
        return
    session.depth -= 1
    if session.depth == 0:
        session.sync()
        session.line.pop()
        # What follows the network, up to backward, is its loss.
        session.line.relabel("forward")
        if session.repeated_at:
            session.called("repeated_forward", nearest(), time.perf_counter() - session.repeated_at)
        if session.validating is not None:
            _note_validated(session, session.validating, result)


def _is_repeated(session: Session, module: Any, args: tuple[Any, ...]) -> bool:
    """Whether the module had the very same input before, in this step or the last one, which keep theirs alive.

    Not by other weights within a step, as in an optimizer's closure.
    """
    inputs = [each for each in args if isinstance(each, torch.Tensor)]
    if any(each.is_inference() for each in inputs):  # they count no versions
        return False
    key, version = (id(module), *((id(each), each._version) for each in inputs)), _version(module)
    last, this = session.inputs
    repeated = bool(inputs) and (key in last or (key in this and this[key][1] == version))
    this[key] = inputs, version
    return repeated


def _version(module: Any) -> int:
    """A number that grows as soon as a weight changes."""
    return sum(parameter._version for parameter in module.parameters() if parameter.requires_grad)


def _note_validated(session: Session, validation: dict[str, Any], result: Any) -> None:
    """Note whether a forward pass of a validation recorded a graph, and whether the training has its batches too."""
    validation["passes"] += 1
    if any(each.requires_grad for each in tensors_in(result)):
        validation["graphs"] += 1
        validation.setdefault("graph_site", nearest())
    validation["trained_on"] += session.trains_on_last_batch()


def _describe(session: Session, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    detached = tuple(_detached(each) for each in args), {name: _detached(each) for name, each in kwargs.items()}
    session.last_batches[id(module)] = detached
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    for each in tensors:
        if each.requires_grad and each.is_leaf:
            session.called("input_gradient", nearest())
        if type(each) not in (torch.Tensor, torch.nn.Parameter):
            session.subclass = f"{type(each).__module__}.{type(each).__qualname__}"
    if not tensors:
        return
    device = tensors[0].device.type
    shape = "x".join(str(size) for size in tensors[0].shape)
    session.shapes[shape] = session.shapes.get(shape, 0) + 1
    session.devices[device] = session.devices.get(device, 0) + 1
    kind = _autocast_dtype(device)
    session.autocast[kind] = session.autocast.get(kind, 0) + 1


def _autocast_dtype(device: str) -> str:
    """Such as `torch.bfloat16`; "" where autocast is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    if device == "cpu":  # torch 2.1 has functions of its own for each
        return str(torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else ""
    return str(torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else ""


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value
