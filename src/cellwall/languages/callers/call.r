# Runs a program with `arguments`, and leaves the value of `main(...)` or of `result`.
local({
  given <- jsonlite::fromJSON(Sys.getenv("CELLWALL_ARGUMENTS"), simplifyVector = TRUE)
  assign("arguments", as.list(given), envir = globalenv())
  words <- commandArgs(trailingOnly = TRUE)
  file <- words[[1]]
  assign("commandArgs", function(trailingOnly = FALSE) {
    if (trailingOnly) words[-1] else c("R", "--args", words[-1])
  }, envir = globalenv())
  target <- file.path(getwd(), Sys.getenv("CELLWALL_RESULT"))
  source(file, local = globalenv(), print.eval = TRUE, keep.source = TRUE)
  own <- globalenv()
  if (exists("main", envir = own, mode = "function", inherits = FALSE)) {
    value <- do.call(get("main", envir = own), get("arguments", envir = own))
  } else if (exists("result", envir = own, inherits = FALSE)) {
    value <- get("result", envir = own)
  } else {
    return(invisible())
  }
  writeLines(
    jsonlite::toJSON(value, auto_unbox = TRUE, null = "null", na = "null", digits = NA),
    target
  )
})
