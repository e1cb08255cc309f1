"""How much text a member of an event is."""


def length(value: object) -> int:
    """Characters of a text; of the texts in it, where it is a list or an object of them."""
    if type(value) is str:
        return len(value)
    return 0 if value is None else sum(map(len, _texts(value)))


def _texts(value: object) -> list[str]:
    texts, left = [], [value]
    while left:
        match left.pop():
            case str() as text:
                texts.append(text)
            case list() as items:
                left += items
            case dict() as members:
                left += members.values()
            case _:
                pass
    return texts
