"""What the languages of the JVM share: how it is kept small, and how it reports its end.

Not an entry. A JVM reserves a lot of address space and touches little of it; nothing here bounds
the former. Class-data sharing and one compiler tier start it sooner and keep it small.
"""

SMALL = (
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
)
UNCAUGHT = r'^Exception in thread "[^"\n]*" (?P<name>[\w.$]+)(?:: (?P<value>.*))?$'
PLACE = r"^[ \t]+at [^\n(]*\({file}:(?P<line>\d{1,9})\)$"
