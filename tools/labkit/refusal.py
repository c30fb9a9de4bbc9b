"""What the lab says, in one line, when it cannot do what was asked."""


class Refusal(Exception):
    """The outside world is not as needed: a missing tool or right, a wrong argument, a command that failed."""
