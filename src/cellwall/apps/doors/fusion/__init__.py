"""SandboxFusion: `POST /run_code` and `POST /run_jupyter`, as reinforcement learning calls them."""
