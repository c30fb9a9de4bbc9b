// What every transport must do, as one body for all its ranks; the tests of in_process and of mpi run the same one.
#pragma once

#include "grace/base/result.h"
#include "grace/comm/transport.h"

namespace grace::comm {

// Exchanges of everyone and of groups, sizes 0, 1, primes and beyond one chunk, many in a row, gathers and barriers between them. Collective. Errors: internal, at the first difference.
Status check_exchanges(Transport& transport);

}  // namespace grace::comm
