from users import get_user


def title(id: int) -> str:
    user = get_user(id)
    if user is None:
        return "nobody"
    return f"Report for {user.name}"
