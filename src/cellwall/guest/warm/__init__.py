"""Work that the fork-server does once so that no sandbox has to; nothing here runs caller code."""
