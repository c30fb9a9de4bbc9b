// The command line: parses, prints, exits.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>

#include "context.h"
#include "grace/files/json_file.h"

namespace grace::app {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& json) { print(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"); }

namespace {

constexpr int kFailed = 1, kImpossible = 2;

int complain(const std::string& message, int code) {
  std::string line = "grace: " + message;
  for (char& c : line)
    if (c == '\n') c = ' ';
  std::fprintf(stderr, "%s\n", line.c_str());
  return code;
}

int exit_code_of(const Error& error) {
  return error.kind == ErrorKind::kInvalidInput || error.kind == ErrorKind::kUnsupported ? kImpossible
                                                                                         : kFailed;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Serves Mixture-of-Experts models across many devices: profiles, plans, runs.", "grace");
  app.set_version_flag("--version", "grace " GRACE_VERSION);
  app.require_subcommand(1);
  app.footer("Each command has its own --help with an example: grace run --help");
  const std::unique_ptr<RankVoice> voice = RankVoice::start();
  Context context{argc, argv, {}, voice.get()};
  add_demo(app, context);
  add_tokenize(app, context);
  add_eval(app, context);
  add_profile(app, context);
  add_synthesize(app, context);
  add_plan(app, context);
  add_compare(app, context);
  add_reproduce(app, context);
  add_simulate(app, context);
  add_calibrate(app, context);
  add_run(app, context);
  add_bench(app, context);
  add_report(app, context);
  add_import(app, context);
  add_export(app, context);
  add_check(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::RequiredError& error) {  // an unknown command's too, which it does not name
    const bool unknown = app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-';
    if (unknown)
      return complain(std::string("'") + argv[1] + "' is no command; grace --help lists them", kImpossible);
    return complain(error.what(), kImpossible);
  } catch (const CLI::ParseError& error) {
    return complain(error.what(), kImpossible);
  }
  const Result<int> done = context.action();
  if (done.ok()) {
    if (voice != nullptr) voice->done();
    return done.value();
  }
  const int code = exit_code_of(done.error());
  if (voice == nullptr) return complain(done.error().message, code);
  voice->fault(done.error());  // one line for all ranks is the parent's to print
  return code;
}

}  // namespace
}  // namespace grace::app

int main(int argc, char** argv) {
  try {
    return grace::app::parse_and_run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, and what the libraries below us throw
    return grace::app::complain(error.what(), grace::app::kFailed);
  }
}
