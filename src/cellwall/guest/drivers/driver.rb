# Runs Ruby for a context: one request, one answer, state kept in between.
# Started by `interpreter.py` with the paths of two pipes. No pipe is open while caller code runs.
require 'json'

module CellwallDriver
  REQUESTS, ANSWERS = ARGV.shift(2)
  LOCK = Mutex.new
  FORMS = {
    'text/html' => :to_html, 'image/svg+xml' => :to_svg, 'image/png' => :to_png,
    'text/markdown' => :to_markdown, 'text/latex' => :to_latex
  }.freeze

  module_function

  def say(message)
    line = "#{JSON.generate(message)}\n"
    LOCK.synchronize { File.open(ANSWERS, 'w') { |pipe| pipe.write(line) } }
  end

  def text(string)
    string.to_s.dup.force_encoding(Encoding::UTF_8).scrub('?')
  end

  def bundle(value)
    forms = { 'text/plain' => text(value.inspect) }
    FORMS.each do |mime, method|
      next unless value.respond_to?(method)

      form = value.public_send(method).to_s
      forms[mime] = mime == 'image/png' ? [form].pack('m0') : text(form)
    rescue StandardError
      next # a form that fails must not hide the others
    end
    forms
  end

  def show(*values)
    $stdout.flush
    values.each { |value| say(ev: 'display', kind: 'display', data: bundle(value)) }
    nil
  end

  def report(error)
    name = error.is_a?(Interrupt) ? 'KeyboardInterrupt' : error.class.name.to_s
    error.backtrace&.select! { |line| line.start_with?('cell-') || !line.include?('-e:') }
    trace =
      if error.is_a?(SyntaxError)
        text("#{error.message} (SyntaxError)\n")
      else
        text(error.full_message(highlight: false, order: :top))
      end
    $stdout.flush
    $stderr.puts(trace)
    say(ev: 'error', name: name, value: text(error.message), traceback: trace)
  end

  def cell(source, number, is_displayed)
    raised = false
    begin
      say(ev: 'running')
      value = eval(source, TOPLEVEL_BINDING, "cell-#{number}", 1)
      TOPLEVEL_BINDING.local_variable_set(:_, value)
      say(ev: 'display', kind: 'result', data: bundle(value)) if is_displayed && !value.nil?
    rescue SystemExit
      raise
    rescue Exception => error
      raised = true
      begin
        report(error)
      rescue Exception => second # what an error says of itself is the cell's own code
        told = RuntimeError.new("#{error.class}, which cannot be shown (#{second.class})")
        told.set_backtrace(["cell-#{number}"])
        report(told)
      end
    end
    $stdout.flush
    say(ev: 'done', raised: raised)
  end

  def request
    line = File.open(REQUESTS, &:gets)
    exit!(0) if line.nil?
    line.chomp.split("\t")
  rescue Interrupt
    retry # it was meant for a cell that is over
  end

  def serve
    number = 0
    loop do
      _kind, source, stdin, is_displayed = request
      number += 1
      $stdin.reopen(stdin == '-' ? '/dev/null' : stdin)
      begin
        cell(File.read(source, encoding: 'UTF-8'), number, is_displayed == '1')
      rescue Interrupt
        say(ev: 'done', raised: true) # it came between the cell and its answer
      end
    end
  end
end

Encoding.default_external = Encoding::UTF_8
$stdout.sync = true
$0 = 'cell'
CellwallDriver.say(ev: 'ready')
CellwallDriver.serve
