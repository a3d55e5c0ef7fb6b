"""What a case raises when `pipe` did not behave."""


class Failure(Exception):
    """Says what was expected and what happened, with the command's output where there is one."""


def expect(condition, message):
    if not condition:
        raise Failure(message)
