#include "launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "fingerprint.h"
#include "grace/comm/mpi/mpi_transport.h"
#include "job_process.h"
#include "memory.h"
#include "rank_report.h"
#include "supervise.h"

namespace grace::app {
namespace {

// Ranks that share cores can wait long for one another's turn; a rank that is gone is told at once by other
// means.
constexpr std::chrono::milliseconds kRankTimeout = std::chrono::minutes(5);
constexpr int kMostThreads = 1024;

constexpr double kLeastDeadlineS = 1, kMostDeadlineS = 3600;

// The mpirun of this command line; 0 ranks leaves the number to the hostfile.
std::vector<std::string> mpirun_words(const RanksWanted& wanted, const std::filesystem::path& scratch,
                                      const Context& context) {
  std::vector<std::string> words = {
      "mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
      // When one rank is gone the rest have nothing to put in order: end them at once.
      "--mca", "odls_base_sigkill_timeout", "0",
      // So that it says which rank ended how; supervise reads it.
      "--mca", "state_base_verbose", "1",
      // Of the ways to share memory the one whose files lie in the folder below: another tries itself out
      // with a file that a rank killed at that moment leaves in /dev/shm.
      "--mca", "shmem", "mmap"};
  if (wanted.size > 0) words.insert(words.end(), {"-n", std::to_string(wanted.size)});
  if (!wanted.hosts.empty())
    words.insert(words.end(), {"--hostfile", wanted.hosts, "-x", kSupervisedVariable});
  else if (!scratch.empty())  // other machines have no such folder
    for (const char* what : {"orte_tmpdir_base", "btl_vader_backing_directory", "osc_sm_backing_directory"})
      words.insert(words.end(), {"--mca", what, scratch.string()});
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  words.push_back(length > 0 ? std::string(path, static_cast<std::size_t>(length)) : context.argv[0]);
  for (int i = 1; i < context.argc; ++i) words.emplace_back(context.argv[i]);
  return words;
}

Result<int> run_under_mpirun(const RanksWanted& wanted, const Context& context) {
  SuperviseOptions options;
  options.ranks = wanted.size;
  options.talks = wanted.talks;
  options.deadline = std::chrono::milliseconds(std::llround(wanted.deadline_s * 1000));
  options.whole_output_only = std::any_of(context.argv, context.argv + context.argc, [](const char* word) {
    return std::string_view(word) == "--json";
  });
  if (geteuid() == 0) {  // Open MPI refuses root unless told twice
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  // By default a long message's go-ahead waits behind the data that go the other way, and a link between
  // machines is busy in one direction at a time: half the rate.
  setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", 0);
  setenv(kSupervisedVariable, std::to_string(beat_period(options.deadline).count()).c_str(), 1);
  const ScratchFolder scratch;
  return supervise(mpirun_words(wanted, scratch.path(), context), options);
}

// Whether what this process says is said once: the process that the user started, or of those that the user's
// own mpirun started the first.
bool speaks_for_job() {
  if (!inside_mpi()) return true;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return std::getenv(kSupervisedVariable) == nullptr && rank != nullptr && std::string_view(rank) == "0";
}

// Which of this machine's ranks this process is.
int rank_of_machine() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

}  // namespace

EngineOptions engine_options(const Job& job) {
  return {.arithmetic = job.arithmetic,
          .dispatch = job.dispatch,
          .choose_dispatch = job.choose_dispatch,
          .combine = job.combine,
          .wire = job.wire,
          .overlap = job.overlap,
          .parts = job.parts,
          .packed_cache = job.packed_cache};
}

std::string_view dispatch_name(const Job& job, Dispatch dispatch) {
  return job.choose_dispatch ? kChosenDispatch : name_of(dispatch);
}

Result<bool> uses_mpi(const std::string& transport) {
  if (transport.empty()) return inside_mpi();
  if (transport == "mpi") return true;
  if (transport == "in_process") return false;
  return invalid_input(fmt::format("--transport: '{}' is neither in_process nor mpi", transport));
}

Status prepare_ranks(const EngineFlags& flags, Job& job) {
  job.hosts = flags.hosts;
  job.packed_cache = flags.packed_cache;
  job.seed = flags.seed;
  job.deadline_s = flags.deadline_s;
  job.mpi = GRACE_TRY(uses_mpi(flags.transport));
  job.choose_dispatch = flags.dispatch == kChosenDispatch;
  if (!job.choose_dispatch) job.dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  job.wire = GRACE_TRY(parse_wire(flags.wire));
  job.overlap = GRACE_TRY(parse_overlap(flags.overlap));
  job.parts = GRACE_TRY(parse_parts(flags.parts));
  if (flags.progress == "thread")
    job.progress = Progress::kThread;
  else if (flags.progress != "polling")
    return invalid_input(fmt::format("--progress: '{}' is neither polling nor thread", flags.progress));
  job.combine = GRACE_TRY(parse_combine(flags.combine));
  if (flags.exact && job.combine != Combine::kExact)
    return invalid_input(fmt::format("--exact: contradicts --combine {}", flags.combine));
  job.arithmetic.numbers = GRACE_TRY(kernels::find_numbers(flags.dtype));
  job.form = {Element::kF32, job.arithmetic.numbers};
  job.arithmetic.instructions = GRACE_TRY(kernels::find_instructions(flags.kernels));
  if (flags.threads < 1 || flags.threads > kMostThreads)
    return invalid_input(fmt::format("--threads: {} is outside [1, {}]", flags.threads, kMostThreads));
  job.threads = flags.threads;
  job.pin = flags.pin;
  job.cluster = GRACE_TRY(parse_cluster(flags.cluster));
  return {};
}

Result<Plan> read_plan_for(const std::string& path, const Job& job) {
  Plan plan = GRACE_TRY(read_plan(path));
  std::vector<int> added;
  if (plan.num_devices() == job.cluster.num_devices())
    added = cover_layers(plan, job.config.moe_layers, job.cluster);
  GRACE_TRY(check_fits(plan, job.config.num_experts, job.config.moe_layers, job.config.name));
  if (!added.empty() && speaks_for_job())
    fmt::print(stderr, "grace: warning: {}: it lacks decoder layers {}: placed as by vanilla\n", path,
               fmt::join(added, ", "));
  if (const Status enough = check_partners(plan, job.config.experts_per_token); !enough.ok())
    return invalid_input(fmt::format("{}: {}", path, enough.error().message));
  const std::vector<std::string> faults = violations(plan, job.cluster);
  if (!faults.empty()) return invalid_input(fmt::format("{}: {}", path, faults.front()));
  return plan;
}

Result<Job> prepare_job(const EngineFlags& flags) {
  Job job;
  GRACE_TRY(prepare_ranks(flags, job));
  job.model = flags.model;
  if (!std::filesystem::exists(job.model))
    return invalid_input(fmt::format("{}: no such model folder", flags.model));
  job.config = GRACE_TRY(read_model_config(job.model));
  // A folder that cannot be opened is told of by whoever loads it.
  if (const auto checkpoint = Checkpoint::open(job.model); checkpoint.ok())
    job.form = form_of(job.config, checkpoint.value(), job.arithmetic.numbers);
  if (flags.plan.empty()) {
    job.plan = vanilla_plan(job.config.name, job.config.num_experts, job.config.moe_layers, job.cluster);
    GRACE_TRY(check_memory(job, job.plan));
    return job;
  }
  job.plan = GRACE_TRY(read_plan_for(flags.plan, job));
  GRACE_TRY(check_memory(job, job.plan));
  return job;
}

Result<Ranks> Ranks::make(const Job& job, const Context& context, bool talks) {
  const RanksWanted wanted = {.size = job.cluster.num_devices(),
                              .mpi = job.mpi,
                              .hosts = job.hosts,
                              .threads = job.threads,
                              .pin = job.pin,
                              .deadline_s = job.deadline_s,
                              .progress = job.progress,
                              .talks = talks};
  return make(wanted, context, [&] { return fingerprint_of(job, context); });
}

Result<Ranks> Ranks::make(const RanksWanted& wanted, const Context& context) {
  return make(wanted, context, [&] { return fingerprint_of(context); });
}

Result<Ranks> Ranks::make(const RanksWanted& wanted, const Context& context,
                          const std::function<std::map<std::string, std::string>()>& fingerprint) {
  if (!(wanted.deadline_s >= kLeastDeadlineS && wanted.deadline_s <= kMostDeadlineS))
    return invalid_input(fmt::format("--deadline: {:g} is outside [{:g}, {:g}]", wanted.deadline_s,
                                     kLeastDeadlineS, kMostDeadlineS));
  if (wanted.mpi && !inside_mpi()) std::exit(GRACE_TRY(run_under_mpirun(wanted, context)));
  Ranks ranks(wanted.size, wanted.threads, wanted.pin);
  if (!wanted.mpi) return ranks;
  int argc = context.argc;
  char** argv = context.argv;
  ranks.voice_ = context.voice;
  ranks.mpi_ = GRACE_TRY(make_mpi_transport(&argc, &argv, kRankTimeout, wanted.progress));
  GRACE_TRY(ranks.told(agree_on(*ranks.mpi_, fingerprint())));
  if (wanted.size == 0) ranks.size_ = ranks.mpi_->size();
  if (ranks.mpi_->size() != ranks.size_)
    return invalid_input(
        fmt::format("mpirun started {} ranks, the cluster has {} devices", ranks.mpi_->size(), ranks.size_));
  return ranks;
}

Status Ranks::run(const std::function<Status(Transport&, ThreadPool&)>& body) {
  const auto with_pool = [&](Transport& transport) -> Status {
    ThreadPool pool(threads_);
    const int local = mpi_ == nullptr ? transport.rank() : rank_of_machine();
    if (pin_ && !pool.pin(local * threads_))
      return unsupported(
          fmt::format("--pin: this machine's ranks have {} threads or more, and it has {} processors",
                      (local + 1) * threads_, num_processors()));
    return body(transport, pool);
  };
  if (mpi_ == nullptr) return run_in_process(size_, kRankTimeout, with_pool);
  return told(with_pool(*mpi_));
}

Status Ranks::told(Status done) {
  if (done.ok()) return done;
  if (voice_ != nullptr) voice_->fault(done.error());  // before the others can complain of this rank
  mpi_->abort(done.error().message);
  return done;
}

}  // namespace grace::app
