// One rank's failure becomes every rank's, so that nobody waits for a rank that left.
#pragma once

#include "grace/base/result.h"
#include "grace/comm/transport.h"

namespace grace {

// Collective. Ok when every rank is ok, else the error of the lowest rank that has one, on every rank.
// Errors: also the transport's.
Status agree(Transport& transport, const Status& mine);

}  // namespace grace
