"""A stack of numbers. Some of its cases fail: see check.py."""


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop(0)

    def peek(self):
        return self.items[0]

    def size(self):
        return len(self.items) - 1

    def is_empty(self):
        return self.items == []
