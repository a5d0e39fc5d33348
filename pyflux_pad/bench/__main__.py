"""``python -m pyflux_pad.bench``: the costs on the host, printed."""

from .overhead import lines

for line in lines():
    print(line)
