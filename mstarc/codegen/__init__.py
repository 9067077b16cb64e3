"""From a checked program to the files of its generated package: names and layout are decided in Python, templates only print."""
