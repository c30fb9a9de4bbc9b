// `run --chat` without a prompt: a conversation in turns.
#pragma once

#include "chat_prompts.h"
#include "grace/base/result.h"
#include "grace/runtime/generate.h"
#include "launch.h"

namespace grace::app {

// Reads messages from the standard input, a line each, until it ends, and writes each reply to the standard
// output as it comes. `/new` begins another conversation. Errors: those of the job's parts; invalid_input
// for a conversation that has grown longer than the model's positions.
Status chat_in_turns(const Job& job, const ChatFlags& flags, const GenerateOptions& options,
                     const Context& context);

}  // namespace grace::app
