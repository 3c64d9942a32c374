"""Numba's pipeline for kernels: only the passes that generated source needs, and one round of LLVM optimisation.

Numba's default pipeline also handles closures, ``with`` blocks, array expressions and inlined functions. Kernels have none of
these. The default pipeline also optimises each function before the module, to prune reference counts. Kernel loops count no
references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.errors import NumbaWarning, WarningsFixer  # type: ignore[attr-defined]
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import IRLegalization, NativeLowering, NoPythonBackend, PreLowerStripPhis
from numba.core.typeinfer import TypeInferer
from numba.core.untyped_passes import DeadBranchPrune, FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

_signatures: dict[tuple[Any, ...], Any] = {}  # signatures of calls, keyed by the function and its argument types


def signature_of(context: Any, function: Any, args: tuple[Any, ...]) -> Any:
    """Return the signature of a call, from a cache. Numba resolves each call repeatedly, and kernels repeat a few calls."""
    key = (function, *args)  # keeps the function type alive; the type maps the signature to its implementation
    if (signature := _signatures.get(key)) is None:
        signature = context.resolve_function_type(function, args, {})
        if signature is not None:
            _signatures[key] = signature
    return signature


class Inferer(TypeInferer):  # type: ignore[misc]
    """Numba's type inference, with cached signatures."""

    def resolve_call(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        if isinstance(function, types.Function) and not named:
            return signature_of(self.context, function, tuple(args))
        return super().resolve_call(function, args, named)


@register_pass(mutates_CFG=True, analysis_only=False)
class TypeInference(FunctionPass):  # type: ignore[misc]
    """Infer the types of all variables and the signatures of all calls.

    Numba's own pass also takes types of local variables from the caller and checks the type that is returned to Python.
    Kernels and routines use neither.
    """

    _name = "numscorch_type_inference"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        context, warnings = state.typingctx, WarningsFixer(NumbaWarning)
        inferer = Inferer(context, state.func_ir, warnings)
        with context.callstack.register(state.targetctx.target, inferer, state.func_id, state.args), warnings:
            for at, (name, kind) in enumerate(zip(state.func_ir.arg_names, state.args, strict=True)):
                inferer.seed_argument(name, at, kind)
            if state.return_type is not None:
                inferer.seed_return(state.return_type)
            inferer.build_constraint()
            state.typing_errors = inferer.propagate()
            state.typemap, state.return_type, state.calltypes = inferer.unify()
        return True


class Lowering(Lower):  # type: ignore[misc]
    """Numba's lowering, with cached operator signatures.

    Numba first looks for static operands. Only powers need them, and kernels call ``pow`` instead.
    """

    def lower_binop(self, result: Any, expr: Any, operator: Any) -> Any:
        context, types_of_args = self.context, self.fndesc.calltypes[expr].args
        function = context.typing_context.resolve_value_type(operator)
        signature = signature_of(context.typing_context, function, types_of_args)
        operands = zip((expr.lhs.name, expr.rhs.name), types_of_args, strict=True)
        args = [context.cast(self.builder, self.loadvar(name), self.typeof(name), kind) for name, kind in operands]
        value = context.get_function(function, signature)(self.builder, args)
        return context.cast(self.builder, value, signature.return_type, result)


@register_pass(mutates_CFG=True, analysis_only=False)
class ToLLVM(NativeLowering):  # type: ignore[misc]
    """Lower a function to LLVM IR. Each routine gets a separate library, which kernels link."""

    _name = "numscorch_lowering"

    lowering_class = Lowering

    def run_pass(self, state: Any) -> bool:
        is_routine = state.library is None
        if is_routine:
            state.library = Routine(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        if is_routine:
            state.cr = state.cr._replace(cfunc=state.library)  # Numba's key of the function; by default its Python entry point
            state.targetctx.insert_user_function(state.library, state.cr.fndesc, [state.library])
        return True


PASSES_OF_NUMBA = (
    (TranslateByteCode, "read the bytecode"),
    (FixupArgs, "name the arguments"),
    (IRProcessing, "find the blocks"),
    (DeadBranchPrune, "remove branches on None arguments"),
    (ReconstructSSA, "convert to single assignments"),
    (TypeInference, "infer the types"),
    (PreLowerStripPhis, "replace phi nodes by assignments"),
    (IRLegalization, "check that the IR can be lowered"),
    (ToLLVM, "lower to LLVM"),
    (NoPythonBackend, "keep the result"),
)


class Pipeline(CompilerBase):  # type: ignore[misc]
    """The passes for generated source and for the routines that it calls. Python calls neither, so they get no wrappers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        flags = self.state.flags
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True

    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("kernel")
        for pass_type, description in PASSES_OF_NUMBA:
            manager.add_pass(pass_type, description)
        manager.finalize()
        return [manager]


class Library(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of one kernel. LLVM optimises the complete module once."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


class Routine(Library):
    """A library that kernels link. LLVM optimises it as part of each kernel."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class Linked(CPUDispatcher):  # type: ignore[misc]
    """A function that kernels call, compiled for the argument types of each call. A call from Python raises TypeError."""

    def __init__(self, py_func: Callable[..., Any], *_: Any) -> None:  # unpickling passes more arguments, always the same
        options = {"nopython": True, "error_model": "numpy", "nogil": True}
        super().__init__(py_func, targetoptions=options, pipeline_class=Pipeline)

    def _compile_for_args(self, *args: Any, **named: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is a kernel routine and can't be called from Python: call it in a compiled function")

    def add_overload(self, result: Any) -> None:
        self.overloads[tuple(result.signature.args)] = result
