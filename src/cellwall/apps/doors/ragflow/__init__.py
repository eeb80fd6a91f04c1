"""RAGFlow's executor manager: `POST /run` calls a program's `main` with arguments."""
