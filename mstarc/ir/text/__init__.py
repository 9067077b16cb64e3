"""The text form of the IR (`.ir`): `parse_program(print_program(p)) == p`, and printing what was parsed gives the same text.

The first line is `mstarc.ir 1`. Names of scopes are written out (`param.max_steps`, `dim.T`), SSA values are `%3`, a scalar tensor
is `i64[]`, and a host value or port says `host` before its type. Spans are never part of the text.
"""

from mstarc.ir.errors import IrTextError
from mstarc.ir.text.as_json import to_json
from mstarc.ir.text.expressions import print_expr, print_type
from mstarc.ir.text.parser import parse_program
from mstarc.ir.text.printer import HEADER, print_op, print_program, print_request, print_walk

__all__ = [
    "HEADER",
    "IrTextError",
    "parse_program",
    "print_expr",
    "print_op",
    "print_program",
    "print_request",
    "print_type",
    "print_walk",
    "to_json",
]
