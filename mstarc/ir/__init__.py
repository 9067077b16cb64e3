"""The intermediate representation: frozen dataclasses, their text form and their verifier."""
