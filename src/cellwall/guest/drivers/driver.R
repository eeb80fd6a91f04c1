# Runs R for a context: one request, one answer, state kept in between.
# Started by `interpreter.py` with the paths of two pipes. No pipe is open while caller code runs.
local({
  paths <- commandArgs(trailingOnly = TRUE)
  requests <- paths[[1]]
  answers <- paths[[2]]
  folder <- tempfile("plots")
  dir.create(folder)
  count <- 0L
  stdin_path <- "/dev/null"
  base_file <- base::file
  # These find the methods that cells define for classes of theirs; ours are found without cells.
  near_cells <- new.env(parent = globalenv())
  printed <- eval(quote(function(value) base::print(value)), near_cells)
  formatted <- eval(quote(function(value) base::format(value)), near_cells)
  message_of <- eval(quote(function(value) base::conditionMessage(value)), near_cells)

  json_text <- function(text) {
    text <- enc2utf8(paste(text, collapse = "\n"))
    text <- iconv(text, "UTF-8", "UTF-8", sub = "?")
    text <- gsub("\\", "\\\\", text, fixed = TRUE)
    text <- gsub("\"", "\\\"", text, fixed = TRUE)
    text <- gsub("\n", "\\n", text, fixed = TRUE)
    text <- gsub("\r", "\\r", text, fixed = TRUE)
    text <- gsub("\t", "\\t", text, fixed = TRUE)
    paste0("\"", gsub("[[:cntrl:]]", "?", text), "\"")
  }
  json_object <- function(fields) {
    paste0("{", paste0(vapply(names(fields), json_text, ""), ":", fields, collapse = ","), "}")
  }
  say <- function(event, ...) {
    pipe <- base_file(answers, "wb", raw = TRUE)
    on.exit(close(pipe))
    writeBin(charToRaw(paste0(json_object(c(ev = json_text(event), ...)), "\n")), pipe)
  }

  escape_html <- function(text) {
    text <- gsub("&", "&amp;", text, fixed = TRUE)
    gsub(">", "&gt;", gsub("<", "&lt;", text, fixed = TRUE), fixed = TRUE)
  }
  html_table <- function(table) {
    shown <- utils::head(table, 200L)
    row <- function(cells, tag) {
      paste0("<tr>", paste0("<", tag, ">", cells, "</", tag, ">", collapse = ""), "</tr>")
    }
    header <- row(escape_html(c("", colnames(shown))), "th")
    cells <- vapply(shown, function(column) escape_html(formatted(column)), character(nrow(shown)))
    dim(cells) <- dim(shown)
    body <- vapply(seq_len(nrow(shown)), function(i) {
      row(c(escape_html(rownames(shown)[[i]]), cells[i, ]), "td")
    }, "")
    paste0("<table>", header, paste(body, collapse = ""), "</table>")
  }
  show_value <- function(value) {
    draws <- inherits(value, c("ggplot", "trellis", "recordedplot"))
    if (draws) return(printed(value))
    text <- utils::capture.output(if (isS4(value)) methods::show(value) else printed(value))
    forms <- c("text/plain" = json_text(text))
    if (is.data.frame(value)) forms <- c(forms, "text/html" = json_text(html_table(value)))
    say("display", kind = json_text("result"), data = json_object(forms))
  }

  publish_plots <- function() {
    while (!is.null(grDevices::dev.list())) grDevices::dev.off()
    for (path in sort(list.files(folder, "[.]png$", full.names = TRUE))) {
      shown <- json_object(c("image/png" = json_text(path)))
      plain <- json_object(c("text/plain" = json_text("<plot>")))
      say("display", kind = json_text("display"), data = plain, files = shown, remove = "true")
    }
  }
  open_device <- function(...) {
    count <<- count + 1L
    name <- sprintf("%06d-%%03d.png", count)
    grDevices::png(file.path(folder, name), width = 800, height = 600, type = "cairo")
  }

  report <- function(name, message, trace) {
    cat(trace, "\n", sep = "", file = stderr())
    say("error", name = json_text(name), value = json_text(message), traceback = json_text(trace))
  }
  calls_of <- function(calls) {
    # What lies between our own `eval` of the cell and the handlers.
    texts <- vapply(calls, function(call) paste(deparse(call, nlines = 1L), collapse = ""), "")
    first <- max(c(0L, which(startsWith(texts, "eval(expressions[[i]]"))))
    last <- min(c(length(texts) + 1L, which(startsWith(texts, ".handleSimpleError("))))
    if (first + 2L >= last) character() else texts[seq(first + 2L, last - 1L)]
  }

  lines_of <- function(source) {
    file <- base_file(source, "rt", raw = TRUE)
    on.exit(close(file))
    readLines(file, warn = FALSE, encoding = "UTF-8")
  }

  run <- function(source, is_displayed) {
    frames <- character()
    tryCatch({
      say("running")
      expressions <- parse(text = lines_of(source), keep.source = FALSE)
      for (i in seq_along(expressions)) {
        found <- withCallingHandlers(
          withVisible(eval(expressions[[i]], globalenv())),
          error = function(e) frames <<- calls_of(sys.calls())
        )
        if (!found$visible) next
        if (i == length(expressions) && is_displayed) show_value(found$value)
        else if (isS4(found$value)) methods::show(found$value)
        else printed(found$value)
      }
      FALSE
    }, interrupt = function(e) {
      report("KeyboardInterrupt", "", "interrupted")
      TRUE
    }, error = function(e) {
      where <- conditionCall(e)
      is_ours <- is.null(where) || identical(where[[1]], quote(parse)) ||
        identical(where, quote(eval(expressions[[i]], globalenv())))
      place <- if (is_ours) "" else paste0(" in ", paste(deparse(where, nlines = 1L), collapse = ""))
      trace <- paste0("Error", place, " : ", message_of(e))
      if (length(frames)) trace <- paste0(trace, "\n", paste0("  ", frames, collapse = "\n"))
      name <- if (!is.null(where) && identical(where[[1]], quote(parse))) "parseError" else class(e)[[1]]
      report(name, message_of(e), trace)
      TRUE
    })
  }

  # Only what is asked for by name can be given another input: R reads its own once for all.
  attach(list(
    file = function(description = "", ...) {
      if (identical(description, "stdin")) base_file(stdin_path, ..., raw = TRUE) else base_file(description, ...)
    },
    stdin = function() base_file(stdin_path, "rt", raw = TRUE)
  ), name = "cellwall", warn.conflicts = FALSE)

  next_request <- function() {
    pipe <- base_file(requests, "rt", raw = TRUE)
    on.exit(close(pipe))
    readLines(pipe, 1L)
  }
  options(device = open_device, warn = 1L, error = NULL, digits.secs = NULL)
  say("ready")
  repeat {
    line <- tryCatch(next_request(), interrupt = function(e) NULL)
    if (is.null(line)) next
    if (!length(line)) quit("no")
    fields <- strsplit(line, "\t", fixed = TRUE)[[1]]
    stdin_path <- if (fields[[3]] == "-") "/dev/null" else fields[[3]]
    raised <- tryCatch({
      raised <- run(fields[[2]], fields[[4]] == "1")
      publish_plots()
      raised
    }, interrupt = function(e) TRUE)
    say("done", raised = if (raised) "true" else "false")
  }
}, envir = new.env(parent = baseenv()))  # what a cell defines is not found from here
