"""python -m apac"""

from apac.cli import main

main()
