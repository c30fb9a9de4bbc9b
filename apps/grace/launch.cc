#include "launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "grace/comm/mpi/mpi_transport.h"

namespace grace::app {
namespace {

// Ranks that share cores can wait long for one another's turn; a rank that is gone is told at once by other
// means.
constexpr std::chrono::milliseconds kRankTimeout = std::chrono::minutes(5);
constexpr int kMostThreads = 1024;

// Becomes `mpirun -n ranks` of this command line; 0 leaves the number to the hostfile.
Error become_mpirun(int ranks, const std::string& hosts, const Context& context) {
  std::vector<std::string> words = {"mpirun", "--quiet", "--oversubscribe",     "--bind-to",
                                    "none",   "--mca",   "mpi_yield_when_idle", "1"};
  if (ranks > 0) words.insert(words.end(), {"-n", std::to_string(ranks)});
  if (!hosts.empty()) words.insert(words.end(), {"--hostfile", hosts});
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  words.push_back(length > 0 ? std::string(path, static_cast<std::size_t>(length)) : context.argv[0]);
  for (int i = 1; i < context.argc; ++i) words.emplace_back(context.argv[i]);
  if (geteuid() == 0) {  // Open MPI refuses root unless told twice
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp("mpirun", arguments.data());
  return unsupported(fmt::format("--transport mpi: cannot start mpirun: {}", std::strerror(errno)));
}

}  // namespace

Result<bool> uses_mpi(const std::string& transport) {
  if (transport.empty()) return inside_mpi();
  if (transport == "mpi") return true;
  if (transport == "in_process") return false;
  return invalid_input(fmt::format("--transport: '{}' is neither in_process nor mpi", transport));
}

Result<Job> prepare_job(const EngineFlags& flags) {
  Job job;
  job.model = flags.model;
  job.hosts = flags.hosts;
  job.seed = flags.seed;
  job.mpi = GRACE_TRY(uses_mpi(flags.transport));
  job.dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  if (job.dispatch == Dispatch::kTwoStage)
    return unsupported(
        "--dispatch: two_stage is planned for and simulated; ranks exchange by flat or per_device");
  if (flags.dtype != "f32") return unsupported(fmt::format("--dtype: '{}' is not f32", flags.dtype));
  if (flags.threads < 1 || flags.threads > kMostThreads)
    return invalid_input(fmt::format("--threads: {} is outside [1, {}]", flags.threads, kMostThreads));
  job.threads = flags.threads;
  job.cluster = GRACE_TRY(parse_cluster(flags.cluster));
  if (!std::filesystem::exists(job.model))
    return invalid_input(fmt::format("{}: no such model folder", flags.model));
  job.config = GRACE_TRY(read_model_config(job.model));
  if (flags.plan.empty()) {
    job.plan = vanilla_plan(job.config.name, job.config.num_experts, job.config.moe_layers, job.cluster);
    return job;
  }
  job.plan = GRACE_TRY(read_plan(flags.plan));
  GRACE_TRY(check_fits(job.plan, job.config.num_experts, job.config.moe_layers, job.config.name));
  const std::vector<std::string> problems = violations(job.plan, job.cluster);
  if (!problems.empty()) return invalid_input(fmt::format("{}: {}", flags.plan, problems.front()));
  return job;
}

Result<Ranks> Ranks::make(const Job& job, const Context& context) {
  return make({job.cluster.num_devices(), job.mpi, job.hosts, job.threads}, context);
}

Result<Ranks> Ranks::make(const RanksWanted& wanted, const Context& context) {
  if (wanted.mpi && !inside_mpi()) return become_mpirun(wanted.size, wanted.hosts, context);
  Ranks ranks(wanted.size, wanted.threads);
  if (!wanted.mpi) return ranks;
  int argc = context.argc;
  char** argv = context.argv;
  ranks.mpi_ = GRACE_TRY(make_mpi_transport(&argc, &argv, kRankTimeout));
  if (wanted.size == 0) ranks.size_ = ranks.mpi_->size();
  if (ranks.mpi_->size() != ranks.size_)
    return invalid_input(
        fmt::format("mpirun started {} ranks, the cluster has {} devices", ranks.mpi_->size(), ranks.size_));
  return ranks;
}

Status Ranks::run(const std::function<Status(Transport&, ThreadPool&)>& body) {
  const int threads = threads_;
  const auto with_pool = [&](Transport& transport) -> Status {
    ThreadPool pool(threads);
    return body(transport, pool);
  };
  if (mpi_ == nullptr) return run_in_process(size_, kRankTimeout, with_pool);
  Status done = with_pool(*mpi_);
  if (!done.ok()) mpi_->abort(done.error().message);
  return done;
}

}  // namespace grace::app
