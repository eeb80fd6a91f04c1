"""One declarative module for each language; nothing here runs anything."""
