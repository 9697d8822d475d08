"""Tasks: the code of splitters and slots, with their messages and reports."""
