# SPDX-License-Identifier: Apache-2.0
"""A JSON document that one of Headrace's programs wrote, read field by field.

What is missing, or of another type than asked for, is refused by its place in the document.
"""
import json
import os
import re
import stat

MOST_BYTES = 512 << 20
MOST_WHOLE = (1 << 64) - 1
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
KINDS = {dict: "an object", list: "an array", str: "text", bool: "true or false",
         int: "a number", float: "a number", type(None): "null"}


class Refused(Exception):
    """Something asked for that cannot be done; nothing was written."""


def without_controls(text):
    """Characters that no XML page may hold become U+FFFD."""
    return NO_XML.sub("\ufffd", text)


class Fields:
    """A value inside a document. A number is never negative and never NaN."""

    def __init__(self, value, file, fix, place=""):
        self.value, self.file, self.fix, self.place = value, file, fix, place

    def refuse(self, what):
        where = self.place or "the document"
        raise Refused(f"{self.file}: {where} {what}; nothing was made of it. {self.fix}.")

    def _inner(self, value, place):
        return Fields(value, self.file, self.fix, place)

    def has(self, key):
        return isinstance(self.value, dict) and self.value.get(key) is not None

    def at(self, key):
        if not isinstance(self.value, dict):
            self.refuse(f"is {KINDS[type(self.value)]} where an object is needed")
        field = self._inner(self.value.get(key), f"{self.place}.{key}" if self.place else key)
        if key not in self.value:
            field.refuse("is missing")
        return field

    def _of(self, key, kind):
        field = self.at(key)
        if not isinstance(field.value, kind):
            field.refuse(f"is {KINDS[type(field.value)]} where {KINDS[kind]} is needed")
        return field

    def elements(self, key):
        array = self._of(key, list)
        return [self._inner(value, f"{array.place}[{index}]")
                for index, value in enumerate(array.value)]

    def element(self, key, index):
        """Of the array `key`, the one that another field of the document names."""
        elements = self.elements(key)
        if index >= len(elements):
            self.at(key).refuse(f"has {len(elements)} elements, and another field names {index}")
        return elements[index]

    def items(self, key):
        """Names of an object and their values."""
        return [(name, self.at(key).at(name)) for name in self._of(key, dict).value]

    def text(self, key):
        return without_controls(self._of(key, str).value)

    def texts(self, key):
        for field in self.elements(key):
            if not isinstance(field.value, str):
                field.refuse(f"is {KINDS[type(field.value)]} where text is needed")
        return [without_controls(text) for text in self.at(key).value]

    def flag(self, key):
        return self._of(key, bool).value

    def number(self, key):
        field = self.at(key)
        if isinstance(field.value, bool) or not isinstance(field.value, (int, float)):
            field.refuse(f"is {KINDS[type(field.value)]} where a number is needed")
        if not 0 <= field.value <= 1e300:
            field.refuse(f"is {field.value:.3g}, and no figure of a report is")
        return float(field.value)

    def whole(self, key):
        field = self.at(key)
        if type(field.value) is not int or not 0 <= field.value <= MOST_WHOLE:
            field.refuse(f"is not a whole number from 0 to {MOST_WHOLE}")
        return field.value


def _text_of(path, fix):
    """Of a regular file alone: a pipe or a device may never end, or never begin."""
    def unreadable(cause):
        return Refused(f"{path}: {cause}; nothing was made of it. {fix}.")

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise unreadable("is not a regular file")
            if status.st_size > MOST_BYTES:
                raise unreadable("is larger than 512 MiB")
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except IsADirectoryError:
        raise unreadable("is a directory") from None
    except OSError as error:
        raise unreadable(f"cannot be read: {error.strerror}") from None


def _not_finite(word):
    raise ValueError(f"{word} is no number of JSON")


def read_document(path, programs):
    """The report of a run that did not fail, by one of `programs`. Throws Refused."""
    wrote = " or ".join(f"{name} --json" for name in programs)
    fix = f"Give a file that {wrote} wrote"
    try:
        value = json.loads(_text_of(path, fix), parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        cause = f"is no JSON: {error}" if isinstance(error, ValueError) else "is nested too deep"
        raise Refused(f"{path}: {cause}; nothing was made of it. {fix}.") from None
    document = Fields(value, path, fix)
    version = document.whole("schema_version")
    if version != 1:
        document.at("schema_version").refuse(f"is {version} where this version reads 1")
    program = document.text("program")
    if program not in programs:
        document.at("program").refuse(f"is '{program}'")
    return document


def refuse_failed(document):
    """Of a run that failed before it had results."""
    if document.has("error"):
        message = document.at("error").text("message")
        document.at("error").refuse(f"says that the run failed: {message}")
