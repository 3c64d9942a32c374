"""Machine code of kernels: each function is compiled for the types of its parameters, behind an entry that takes words.

An *entry* is a C function ``int32 entry(int64 worker, int64 *words)``. It reads the arguments from the words, 8 bytes each in the
order of the kernel's parameters (an array is an address), calls the function, and returns 0, or 1 where an allocation failed.
One entry serves every number of workers: ``runtime.launcher`` calls it for each.

Nothing of Numba's ``parallel=True`` takes part, which would compile each loop twice, nor its wrappers for calls from Python, nor the
passes for what no kernel has (``pipeline``).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..machine.fingerprints import OPTIONS
from .assembly import Param
from .source import Source

Addresses = dict[str, int]
_kept: list[Any] = []  # libraries, whose code runs as long as the process; LLVM's modules hold weak references to them


def entries_of(source: Source) -> tuple[str, ...]:
    """The functions of a kernel that are called by their entries."""
    names = [function.name for function in source.program.functions]
    return tuple(names[:-1] or names)


def compiled(source: Source, scope: Mapping[str, Any]) -> tuple[Addresses, bytes]:
    """Compile a kernel's functions; the addresses of their entries, and what :func:`loaded` takes.

    Args:
        source: the kernel.
        scope: the globals of its executed file.
    """
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    from .pipeline import Library

    with global_compiler_lock:
        library = Library(cpu_target.target_context.codegen(), source.name)
        library.enable_object_caching()
        for name in entries_of(source):
            _add(library, source, name, scope[name])
        library.finalize()
        addresses = _addresses(library, source)
        code: bytes = library._get_compiled_object()
    return addresses, pickle.dumps((_signature(source), code))


def loaded(source: Source, data: bytes) -> Addresses | None:
    """The addresses of the entries that ``compiled`` made of the same kernel; None where the data are of another one.

    Raises:
        Exception: the data are damaged.
    """
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    signature, code = pickle.loads(data)
    if signature != _signature(source):
        return None
    context = cpu_target.target_context
    context.refresh()  # registers what the code refers to
    codegen = context.codegen()
    with global_compiler_lock:
        state = (source.name, "object", (code, _names(source)))
        return _addresses(type(codegen.create_library(source.name))._unserialize(codegen, state), source)


def _names(source: Source) -> bytes:
    """A module that defines the entries' names, by which Numba finds them in machine code."""
    from llvmlite import binding

    defined = "\n".join(f'define i32 @"{_symbol(source, name)}"() {{ ret i32 0 }}' for name in entries_of(source))
    bitcode: bytes = binding.parse_assembly(defined).as_bitcode()
    return bitcode


def _signature(source: Source) -> tuple[tuple[str, str, bool], ...]:
    return tuple((param.name, param.dtype, param.is_array) for param in source.params)


def _symbol(source: Source, name: str) -> str:
    return f"{source.name}.{name}"


def _addresses(library: Any, source: Source) -> Addresses:
    _kept.append(library)
    addresses = {name: library.get_pointer_to_function(_symbol(source, name)) for name in entries_of(source)}
    if not all(addresses.values()):
        raise KeyError(f"{source.name} has no entry {[name for name, address in addresses.items() if not address]}")
    return addresses


def _add(library: Any, source: Source, name: str, function: Callable[..., None]) -> None:
    """Add a function and its entry to a library."""
    from numba.core import compiler, types
    from numba.core.registry import cpu_target

    from .pipeline import Pipeline

    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, OPTIONS)
    of_worker = name == "body"
    params = _params_of(source, name)
    arguments = (*([types.int64] if of_worker else []), *(_type(param) for _, param in params))
    typing, context = cpu_target.typing_context, cpu_target.target_context
    compiled = compiler.compile_extra(typing, context, function, arguments, types.void, flags, {}, library, Pipeline)
    library.add_ir_module(_entry(context, compiled.fndesc, _symbol(source, name), [at for at, _ in params], of_worker))


def _params_of(source: Source, name: str) -> list[tuple[int, Param]]:
    """The parameters that a function has, each with its word."""
    (function,) = (candidate for candidate in source.program.functions if candidate.name == name)
    return [(at, param) for at, param in enumerate(source.params) if param.name in function.params]


def _type(param: Param) -> Any:
    from numba import types

    scalar = getattr(types, param.dtype)
    return types.CPointer(scalar) if param.is_array else scalar


def _entry(context: Any, fndesc: Any, symbol: str, words: Sequence[int], of_worker: bool) -> Any:
    """The module of an entry: it reads the words, calls the function, and returns whether that failed."""
    from llvmlite import ir

    wide, narrow = ir.IntType(64), ir.IntType(32)
    module = context.create_module(symbol)
    function = ir.Function(module, context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes), fndesc.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(narrow, [wide, wide.as_pointer()]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    arguments = [entry.args[0]] if of_worker else []
    for at, kind in zip(words, fndesc.argtypes[of_worker:], strict=True):
        word, wanted = builder.load(builder.gep(entry.args[1], [wide(at)])), context.get_value_type(kind)
        if isinstance(wanted, ir.PointerType):
            word = builder.inttoptr(word, wanted)
        elif wanted != wide:
            word = builder.bitcast(word, wanted)
        arguments.append(word)
    status, _ = context.call_conv.call_function(builder, function, fndesc.restype, fndesc.argtypes, arguments)
    builder.ret(builder.zext(status.is_error, narrow))
    return module
