"""Parts that library and SDK share apart from their faces: tasks, callbacks, arguments."""
