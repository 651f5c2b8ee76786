"""A stand-in for the calls by which a framework is told about a device: it records them, and the CPU does the work.

For frameworks in which a device cannot be registered from Python. It shows that the calls are made, in which order, and
how often the host reads a value; nothing is computed elsewhere, so nothing can be read too early.
"""

from dataclasses import dataclass, field


@dataclass
class Calls:
    """(name, arguments) of each recorded call, in their order."""

    made: list = field(default_factory=list)

    def stand_in(self, monkeypatch, owner, name, answer):
        """Record the calls of owner.name, and answer them."""

        def call(*args, **kwargs):
            self.made.append((name, args, kwargs))
            return answer(*args, **kwargs) if callable(answer) else answer

        monkeypatch.setattr(owner, name, call)

    def listen(self, monkeypatch, owner, name):
        """Record the calls of owner.name, and make them."""
        self.stand_in(monkeypatch, owner, name, getattr(owner, name))

    def of(self, *names):
        return [(name, args, kwargs) for name, args, kwargs in self.made if name in names]

    def count(self, *names):
        return len(self.of(*names))
