"""Machine code of kernels: each function is compiled for the types of its parameters and gets an entry that takes words.

An *entry* is a C function ``int64 entry(int64 worker, int64 *words)``. It reads the arguments from 8-byte words in the order
of the kernel's parameters (an array is an address), calls the function, and returns its status: 0, or the address of the
exception that the function raised. One entry serves any number of workers: ``machine.launcher`` calls it once for each worker.

Numba's ``parallel=True`` is not used, because it compiles each loop twice. Numba's wrappers for calls from Python and its
passes for features that kernels don't use are skipped as well (see ``numba_passes``).
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..machine.fingerprints import OPTIONS
from .assembly import Param
from .numba_passes import Library, Pipeline
from .source import Source

# Innermost loops start at a cache line (2^6 bytes): loops of a few instructions take up to 1.3 times as long across two lines. LLVM keeps
# the option for the process, and other processors than x86 ignore it.
binding.set_option("numscorch", "-x86-experimental-pref-innermost-loop-alignment=6")
_libraries: list[Any] = []  # keeps machine code alive for the whole process; LLVM modules hold only weak references to libraries


def entries_of(source: Source) -> tuple[str, ...]:
    """Return the names of a kernel's functions that have entries."""
    names = [function.name for function in source.program.functions]
    return tuple(names[:-1] or names)


def compiled(source: Source, scope: Mapping[str, Any]) -> tuple[dict[str, int], bytes]:
    """Compile a kernel's functions. Return the addresses of their entries, and the data for :func:`loaded`.

    Args:
        source: the kernel.
        scope: the globals of its executed file.
    """
    with global_compiler_lock:
        library = Library(cpu_target.target_context.codegen(), source.name)
        library.enable_object_caching()
        for name in entries_of(source):
            _add(library, source, name, scope[name])
        library.finalize()
        addresses = _addresses(library, source)
        code: bytes = library._get_compiled_object()
    return addresses, pickle.dumps((_signature(source), code))


def loaded(source: Source, data: bytes) -> dict[str, int] | None:
    """Load the data of :func:`compiled`. Return the addresses of the entries, or None if the data belong to another kernel.

    Raises:
        Exception: the data are damaged.
    """
    signature, code = pickle.loads(data)
    if signature != _signature(source):
        return None
    context = cpu_target.target_context
    context.refresh()  # registers the symbols that the code refers to
    codegen = context.codegen()
    with global_compiler_lock:
        state = (source.name, "object", (code, _names(source)))
        return _addresses(type(codegen.create_library(source.name))._unserialize(codegen, state), source)


def _names(source: Source) -> bytes:
    """Return the bitcode of a module that defines the entries' names, by which Numba finds the entries in machine code."""
    defined = "\n".join(f'define i64 @"{_symbol(source, name)}"() {{ ret i64 0 }}' for name in entries_of(source))
    return binding.parse_assembly(defined).as_bitcode()


def _signature(source: Source) -> tuple[tuple[str, str, bool], ...]:
    return tuple((param.name, param.dtype, param.is_array) for param in source.params)


def _symbol(source: Source, name: str) -> str:
    return f"{source.name}.{name}"


def _addresses(library: Any, source: Source) -> dict[str, int]:
    _libraries.append(library)
    addresses = {name: library.get_pointer_to_function(_symbol(source, name)) for name in entries_of(source)}
    if not all(addresses.values()):
        raise KeyError(f"{source.name} has no entry {[name for name, address in addresses.items() if not address]}")
    return addresses


def _add(library: Any, source: Source, name: str, function: Callable[..., None]) -> None:
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, OPTIONS)
    flags.noalias = True  # results and workspaces are new arrays, which share no memory with operands
    of_worker = name == "body"
    (definition,) = (candidate for candidate in source.program.functions if candidate.name == name)
    params = [(at, param) for at, param in enumerate(source.params) if param.name in definition.params]  # with the index of its word
    arguments = (*([types.int64] if of_worker else []), *(_type(param) for _, param in params))
    typing, context = cpu_target.typing_context, cpu_target.target_context
    compiled = compiler.compile_extra(typing, context, function, arguments, types.void, flags, {}, library, Pipeline)
    library.add_ir_module(_entry(context, compiled.fndesc, _symbol(source, name), [at for at, _ in params], of_worker))


def _type(param: Param) -> Any:
    scalar = getattr(types, param.dtype)
    return types.CPointer(scalar) if param.is_array else scalar


def _entry(context: Any, fndesc: Any, symbol: str, words: Sequence[int], of_worker: bool) -> Any:
    """Build the module of an entry, which reads the words, calls the function, and returns its status."""
    wide = ir.IntType(64)
    module = context.create_module(symbol)
    function = ir.Function(module, context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes), fndesc.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(wide, [wide, wide.as_pointer()]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    arguments = [entry.args[0]] if of_worker else []
    for at, kind in zip(words, fndesc.argtypes[of_worker:], strict=True):
        word, value_type = builder.load(builder.gep(entry.args[1], [wide(at)])), context.get_value_type(kind)
        if isinstance(value_type, ir.PointerType):
            word = builder.inttoptr(word, value_type)
        elif value_type != wide:
            word = builder.bitcast(word, value_type)
        arguments.append(word)
    status, _ = context.call_conv.call_function(builder, function, fndesc.restype, fndesc.argtypes, arguments)
    builder.ret(builder.select(status.is_error, builder.ptrtoint(status.excinfoptr, wide), wide(0)))
    return module


def raised(status: int) -> Exception:
    """Return the exception that a compiled function raised, from the status of its entry.

    Numba stores a pickled tuple of the class, its arguments and the place: a pointer to the bytes, and their number.
    """
    data, size = ctypes.c_void_p.from_address(status).value, ctypes.c_int32.from_address(status + ctypes.sizeof(ctypes.c_void_p)).value
    kind, arguments, _ = pickle.loads(ctypes.string_at(data or 0, size))
    if kind is MemoryError:
        return MemoryError("a kernel could not allocate its temporary arrays: free some memory")
    return kind(*(arguments or ()))
