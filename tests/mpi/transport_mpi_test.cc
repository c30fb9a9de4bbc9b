// The MPI transport under mpirun: `exchange` runs the checks that every transport must pass, `thread` the
// same with a thread that moves messages; `error` and `absent` check that the others learn of a rank that
// fails or never comes. Exit code 0 when this rank saw what it should.
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "grace/comm/mpi/mpi_transport.h"
#include "grace/comm/transport_checks.h"

namespace grace {
namespace {

using namespace std::chrono_literals;

Status expect_error(const Status& got, ErrorKind kind, std::string_view words) {
  if (got.ok()) return internal_error("no error, expected one with: " + std::string(words));
  if (got.error().kind != kind) return internal_error("another kind of error: " + got.error().message);
  if (got.error().message.find(words) == std::string::npos)
    return internal_error("another error: " + got.error().message);
  return {};
}

Status check_error(Transport& t) {
  // Whoever is through it knows that the others are in it: none is still making its transport.
  const Status met = t.barrier();
  if (t.rank() == t.size() - 1) {
    GRACE_TRY(met);
    t.abort("expert 64 is outside [0, 64)");
    return {};
  }
  const Status woken = met.ok() ? t.barrier() : met;
  GRACE_TRY(expect_error(woken, ErrorKind::kPeerLost,
                         "rank " + std::to_string(t.size() - 1) + " left: expert 64 is outside"));
  return expect_error(t.barrier(), ErrorKind::kPeerLost, "expert 64");
}

// The last rank sleeps beyond the deadline; each of the others runs into it, or hears of one that did.
Status check_absent(Transport& t, std::chrono::milliseconds timeout) {
  GRACE_TRY(t.barrier());
  const int last = t.size() - 1;
  if (t.rank() == last) {
    std::this_thread::sleep_for(timeout + timeout / 2);
    // All the others had come to the first one, so it may still end well.
    const Status first = t.barrier();
    return expect_error(first.ok() ? t.barrier() : first, ErrorKind::kPeerLost, "left: ");
  }
  const Status waited = t.barrier();
  Status seen = expect_error(waited, ErrorKind::kTimeout, "for rank " + std::to_string(last) + " in barrier");
  if (!waited.ok() && t.size() > 2 && waited.error().kind == ErrorKind::kPeerLost) seen = Status();
  t.abort(waited.ok() ? "no error" : waited.error().message);
  return seen;
}

int run(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "exchange";
  const std::chrono::milliseconds timeout = mode == "absent" ? 2s : 60s;
  const Progress progress = mode == "thread" ? Progress::kThread : Progress::kPolling;
  Result<std::unique_ptr<Transport>> made = make_mpi_transport(&argc, &argv, timeout, progress);
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 1;
  Transport& transport = *made.value();
  Status done = mode == "error"    ? check_error(transport)
                : mode == "absent" ? check_absent(transport, timeout)
                                   : comm::check_exchanges(transport);
  // One machine, and nothing here keeps processes of one user apart.
  for (int r = 0; done.ok() && r < transport.size(); ++r)
    if (!transport.shares_memory_with(r))
      done = internal_error("memory of rank " + std::to_string(r) + " cannot be read");
  if (done.ok() && !inside_mpi()) done = internal_error("inside_mpi() is false under mpirun");
  if (done.ok() && make_mpi_transport(&argc, &argv, timeout).ok())
    done = internal_error("MPI was initialised twice");
  if (!done.ok())
    std::fprintf(stderr, "rank %d of %d, %s: %s\n", transport.rank(), transport.size(),
                 std::string(mode).c_str(), done.error().message.c_str());
  return done.ok() ? 0 : 1;
}

}  // namespace
}  // namespace grace

int main(int argc, char** argv) { return grace::run(argc, argv); }
