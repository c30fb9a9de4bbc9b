// Ranks as processes under mpirun (Open MPI). No MPI name leaves this folder.
#pragma once

#include <chrono>
#include <memory>

#include "grace/base/result.h"
#include "grace/comm/transport.h"

namespace grace {

// Whether this program was started by mpirun.
bool inside_mpi();

// Who moves messages while a rank computes, since MPI does it only when it is called: the rank itself when it
// polls a channel, or a thread beside it.
enum class Progress { kPolling, kThread };

// Initialises MPI once for the process; the transport finalises it. Errors: unsupported when built without
// MPI; internal when MPI refuses. abort() returns once the others are told. The destructor waits for the
// others to come to theirs (at most `timeout`, 10 s after a fault) and finalises MPI. If they do not come:
// after a fault it leaves MPI as it is, and mpirun ends them when this process exits; without one it ends the
// whole job. One thread uses it, the one that made it.
Result<std::unique_ptr<Transport>> make_mpi_transport(int* argc, char*** argv,
                                                      std::chrono::milliseconds timeout,
                                                      Progress progress = Progress::kPolling);

}  // namespace grace
