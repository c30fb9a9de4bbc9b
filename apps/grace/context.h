// What main hands to each command: how to say what is to be done, and the command line as it came.
#pragma once

#include <functional>
#include <string>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "rank_report.h"

namespace CLI {
class App;
}

namespace grace::app {

// A command's work; its value is the exit code.
using Action = std::function<Result<int>()>;

struct Context {
  int argc = 0;
  char** argv = nullptr;       // for mpirun and MPI
  Action action;               // set by the command that was asked for
  RankVoice* voice = nullptr;  // to the `grace` that started this rank; null where none did
};

// One per command: declares its options and, when it is chosen, sets context.action. `context` outlives the
// parser.
void add_demo(CLI::App& app, Context& context);
void add_tokenize(CLI::App& app, Context& context);
void add_eval(CLI::App& app, Context& context);
void add_profile(CLI::App& app, Context& context);
void add_synthesize(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_reproduce(CLI::App& app, Context& context);
void add_simulate(CLI::App& app, Context& context);
void add_calibrate(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_import(CLI::App& app, Context& context);
void add_export(CLI::App& app, Context& context);
void add_check(CLI::App& app, Context& context);

// Standard output, which carries results only.
void print(const std::string& text);
void print_json(const Json& json);

}  // namespace grace::app
