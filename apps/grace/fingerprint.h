// What all ranks of a job must agree on before they exchange a token.
#pragma once

#include <map>
#include <string>

#include "context.h"
#include "grace/comm/transport.h"
#include "launch.h"

namespace grace::app {

// The thing ("plan") -> what tells one of its kind from another: a hash, or the words themselves.
using Fingerprint = std::map<std::string, std::string>;

// Of the program and the options as they were typed; paths and --threads may differ between machines, the
// files named as input may not.
Fingerprint fingerprint_of(const Context& context);
// Also of model, cluster and plan. Weights are sampled: sizes, and 64 blocks of 4 KiB of each file, which is
// enough to tell one training from another and does not read a checkpoint twice.
Fingerprint fingerprint_of(const Job& job, const Context& context);

// Collective. Errors: invalid_input on every rank, naming the lowest rank that differs from rank 0, and in
// what; also the transport's.
Status agree_on(Transport& transport, const Fingerprint& mine);

}  // namespace grace::app
