"""What of the attacks runs in the jail only, and why: data for `test_attack_corpus` and the docs.

Not a list of what is missing: each line says where the same is shown for the other walls, or why
there is nothing to show. The invariant: every attack is in the corpus, in a module of
one wall, or here; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping

_JAILS_OWN = (
    "how a jail is put together; the others' is in `test_attack_docker`, `test_attack_gvisor`"
)
_FORKED = "what sandboxes of one fork-server share; the others have none"
_ENGINE = "refused or counted by our own process, before or outside of any wall"
_GUEST = "the guest's code, the same on every wall; the contract runs it on each"
_PROBED = "its probes run there, in `test_attack_docker` and `test_attack_gvisor`"
_ROOTLESS = "a jail without root, or without cgroups; the others need both"
_COPIES = (
    "images of a jail's sessions; `test_attack_in_gvisor_copies` has the corpus in copies of gVisor"
)
_SHARED = "what jails share of the host: its files and its kernel's numbers for a user"

MODULES: Mapping[str, str] = {
    "test_attack_alone": "only a jail makes less for one program; others have one init for all",
    "test_attack_cancel": "cancelled at every step of a jail's start; `test_attack_verdicts` and "
    "`test_faults_whole_tree` end the others from outside",
    "test_attack_sealed_files": "only a jail's init is given such files",
    "test_attack_copies": _COPIES,
    "test_attack_copies_ends": _COPIES,
    "test_attack_copies_mutated": _COPIES,
    "test_attack_counts": _SHARED,
    "test_attack_debug_profile": "a second filter of the jail's, which the others refuse to have",
    "test_attack_faults": "faults of a jail; the others' are `test_faults_docker`, "
    "`test_faults_gvisor` and `test_faults_whole_tree`",
    "test_attack_frames": _ENGINE,
    "test_attack_history": _GUEST,
    "test_attack_javascript": "the wall is the same for every language; `test_conformance` has "
    "JavaScript on each",
    "test_attack_leaving": "an end is foreseen in a jail only; elsewhere it is waited for",
    "test_attack_mutation": "guards of the jail left out one by one; `test_gvisor_parts` and "
    "`test_attack_docker` compare what a guard is on theirs",
    "test_attack_neighbour": "two jails on one kernel's clock; the others have the same cgroups",
    "test_attack_networks": "only jails have one after the other; a container's network is "
    "its own, and gVisor's network is in its kernel",
    "test_attack_pid_reuse": "pids of a jail; the others are killed by pidfd and pid namespace",
    "test_attack_ports": _GUEST,
    "test_attack_posture": _JAILS_OWN,
    "test_attack_privilege": _PROBED,
    "test_attack_reviewed": "a jail's init, and its smallest limits at once",
    "test_attack_root": _SHARED,
    "test_attack_rounds": "hundreds of limits in a row; the contract breaks each on every wall",
    "test_attack_shared_files": _SHARED,
    "test_attack_swap": "the cgroup's, the same on every wall",
    "test_attack_templates": "starts each runtime itself, and builds, which has no wall",
    "test_attack_terminals": _GUEST,
    "test_attack_tools": _GUEST,
    "test_attack_tools_javascript": _GUEST,
    "test_attack_watches": _GUEST,
    "test_attack_words": _ENGINE,
    "test_attack_words_passed": _ENGINE,
    "test_root_without_cgroups": _ROOTLESS,
    "test_rootless_host_refusals": _ROOTLESS,
    "test_rootless_sandbox": _ROOTLESS,
    "test_attack_in_flight": _ROOTLESS,
    "test_attack_image_root": "a jail's; `test_attack_image_walls` has the others'",
    "test_attack_image_probes": "on images, in jails and containers; gVisor's kernel is the same",
    "test_attack_image_build": "builds in the jail, which serves every wall",
    "test_attack_image_chroot": "root of an image, on each runtime",
    "test_attack_image_places": "root of an image, on each runtime",
    "test_attack_image_shared": "two sandboxes on one image, on each runtime",
    "test_attack_image_walls": "gVisor and containers on images, with the jail's probes",
    "test_attack_volumes": "runs in jails, in gVisor and in containers by itself, on both roots",
    "test_attack_unpack": "unpacks for every wall, in a jail of its own",
    "test_rootless_counts": _ROOTLESS,
    "test_rootless_images": _ROOTLESS,
    "test_rootless_snapshots": _ROOTLESS,
    "test_attack_own_ids": _ROOTLESS,
}

TESTS: Mapping[str, str] = {
    "test_archive_of_too_many_entries_ends_at_the_inode_limit": _GUEST,
    "test_archive_that_is_too_large_ends_at_the_disk_limit": _GUEST,
    "test_busy_threads_get_no_more_than_their_share": "the cgroup's, the same on every wall",
    "test_call_is_denied": _PROBED,
    "test_core_limit_also_stops_the_host_s_handler": "one host's handler; a crash leaves no core",
    "test_corrupt_archive_is_refused_and_the_agent_lives": _GUEST,
    "test_counts_of_all_namespaces_are_hidden": "modes of a jail's /proc; docs/docker.md and "
    "known-limits say what the others show",
    "test_directory_of_a_hundred_thousand_files_is_listed_within_bounds": _GUEST,
    "test_every_verdict_has_an_end_here": "about the list of ends that runs on each",
    "test_exit_hooks_and_buffers_of_the_image_are_silent": _FORKED,
    "test_figures_that_programs_miss_are_there": "the jail's /proc, as the quota's figures",
    "test_figures_are_the_quota": "the jail's /proc; docs/docker.md says what the others show",
    "test_flood_is_cut_and_counted_and_costs_the_host_little": _ENGINE,
    "test_flood_of_splices_stays_in_its_sandbox": "needs a kernel shared with the neighbour, and "
    "the filter is Docker's too",
    "test_flood_of_tiny_writes_is_taken": _ENGINE,
    "test_forks_refused_to_one_are_no_verdict_of_the_next": "directories that serve again are the "
    "jail's alone",
    "test_fresh_interpreter_ignores_what_the_caller_names": _GUEST,
    "test_fresh_interpreters_share_neither_hash_seed_nor_layout": _FORKED,
    "test_hostile_archive_is_refused_and_writes_nothing_beside_its_tree": _GUEST,
    "test_hostile_argument_arrives_unchanged": _GUEST,
    "test_hostile_directory_is_refused": _GUEST,
    "test_hostile_file_name_breaks_no_listing": _GUEST,
    "test_hostile_request_is_refused_before_a_start": _ENGINE,
    "test_hostile_variable_is_powerless": _GUEST,
    "test_huge_pages_of_the_host_are_denied": "the filter's, which is Docker's too",
    "test_huge_representation_is_cut": _GUEST,
    "test_huge_traceback_is_cut": _GUEST,
    "test_java_heap_above_the_limit_is_ended_by_it": "the cgroup's; other hogs run on each",
    "test_kernel_object_flood_ends_within_its_namespace": "namespaces that Docker makes as well; "
    "in gVisor they are the inside's kernel's memory, which counts",
    "test_killed_at_a_system_call_is_syscall": "the jail's filter kills, the others' refuse",
    "test_killed_grandchild_is_never_its_neighbours": "whose kill it was is the engine's own "
    "judgement; gVisor ends what has the memory before its host kills",
    "test_leader_of_a_session_does_not_hang_the_engine_with_its_terminal": _ENGINE,
    "test_leader_of_a_session_plays_unconfined": "the control, which needs no wall",
    "test_lease_on_a_shared_file_is_denied": _SHARED,
    "test_library_tells_another_story_outside": "the control, which needs no wall",
    "test_links_to_one_large_file_count_each": _ENGINE,
    "test_locale_and_umask_of_the_caller_do_not_matter": _ENGINE,
    "test_locking_memory_is_denied": "the rlimit of a jail; elsewhere locked pages count as any",
    "test_no_random_number_repeats_in_twenty_runs": _FORKED,
    "test_node_heap_above_the_limit_is_ended_by_it": "`test_conformance` has it on each",
    "test_odd_upload_name_is_taken_literally": _GUEST,
    "test_page_cache_is_never_called_over_the_limit": "the cgroup's, the same on every wall",
    "test_parent_and_the_fork_servers_socket_are_out_of_reach": _FORKED,
    "test_path_rewritten_during_the_call_leads_nowhere": "the filter's and Landlock's, which are "
    "Docker's too",
    "test_program_starts_in_the_golden_state": _FORKED,
    "test_reserving_address_space_is_free": "needs Node in the image; `test_conformance` runs it",
    "test_secret_memory_can_not_be_filled": _PROBED,
    "test_set_of_answering_calls_is_the_golden_one": "the golden list is the filter's, and "
    "Docker's containers install the same program",
    "test_set_uid_files_of_the_image_are_powerless": "a copy of ours with the bit runs on each",
    "test_setuid_bits_do_not_travel": _GUEST,
    "test_shell_fork_bomb_is_ended_and_the_process_limit_named": "a bomb as the others, which run",
    "test_sockets_that_hold_each_other_end_at_the_descriptor_limit": "the rlimit's, as the floods "
    "that run",
    "test_source_above_its_cap_is_rejected_before_a_start": _ENGINE,
    "test_sparse_giant_is_refused_as_an_artifact": _ENGINE,
    "test_sync_storm_leaves_its_neighbour_alone": _SHARED,
    "test_ten_gigabytes_of_output_cost_the_host_eight_megabytes": _ENGINE,
    "test_token_of_the_embedder_is_nowhere_in_the_sandbox": _FORKED,
    "test_tree_holds_only_what_the_plan_names": "a jail's tree; an image and a gVisor root are "
    "made of the same plan or of packages, in `test_gvisor_parts` and `test_docker_parts`",
    "test_interrupt_reaches_a_cell_and_keeps_its_state": _GUEST,
    "test_hooks_that_block_a_shutdown_do_not_block_it": _GUEST,
    "test_unread_bytes_of_connections_end_at_the_limit": "our own cgroup's; in gVisor they are its "
    "kernel's memory, which counts",
    "test_unread_socket_buffers_count_or_are_refused": "the cgroup's, the same on every wall",
    "test_upload_name_that_leads_outside_is_rejected_before_a_start": _ENGINE,
    "test_upload_name_that_no_kernel_takes_is_refused": _GUEST,
    "test_view_is_denied": _PROBED,
    "test_what_a_compiler_refuses_has_a_verdict_of_its_own": "`test_conformance` has it on each",
    "test_what_one_caller_gave_is_in_no_other_sandbox": _FORKED,
    "test_what_this_kernel_has_is_hidden": _PROBED,
}
"""Tests of modules whose other tests run in the corpus."""
