// From flags to ranks: what is impossible is said before any rank starts; then the ranks are threads, or
// processes of mpirun.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "context.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/comm/mpi/mpi_transport.h"
#include "grace/comm/transport.h"
#include "grace/cost/cost.h"
#include "grace/kernels/instructions.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/footprint.h"
#include "grace/runtime/replay_engine.h"
#include "options.h"

namespace grace::app {

// What every rank of a command starts from.
struct Job {
  std::filesystem::path model;
  ModelConfig config;
  Cluster cluster;
  Plan plan;
  kernels::Arithmetic arithmetic;
  WeightForm form;  // of the weights that ranks will hold
  Dispatch dispatch = Dispatch::kPerDevice;
  Combine combine = Combine::kExact;
  Wire wire = Wire::kF32;
  bool choose_dispatch = false;  // in place of `dispatch`
  Overlap overlap = Overlap::kWherePays;
  int parts = 1;
  Progress progress = Progress::kPolling;      // with mpi
  std::shared_ptr<const ReplaySource> replay;  // in place of a model folder
  bool mpi = false;
  std::string hosts;
  std::string packed_cache;
  int threads = 1;
  bool pin = false;
  std::uint64_t seed = 0;
  double deadline_s = kDefaultDeadlineS;
};

// What the flags say of ranks, cluster and exchange; nothing of the model and the plan. Errors: those of the
// parts; invalid_input where they contradict one another.
Status prepare_ranks(const EngineFlags& flags, Job& job);
// A plan file that the job's model and cluster can be run by. Errors: those of the file; invalid_input with
// its path where it does not fit.
Result<Plan> read_plan_for(const std::string& path, const Job& job);
// Reads and checks what the flags name. Errors: those of the files; invalid_input where they do not fit
// together, or into memory (check_memory).
Result<Job> prepare_job(const EngineFlags& flags);

// What an engine of the job is made with; nothing is recorded.
EngineOptions engine_options(const Job& job);

// `auto` where its engines choose, else the dispatch's name.
std::string_view dispatch_name(const Job& job, Dispatch dispatch);

// What --transport stands for: mpi where it says so, or says nothing inside mpirun. Errors: invalid_input.
Result<bool> uses_mpi(const std::string& transport);

struct RanksWanted {
  int size = 1;  // with mpi 0 is as many as mpirun starts
  bool mpi = false;
  std::string hosts;
  int threads = 1;                        // of each
  bool pin = false;                       // each thread to a processor of its own
  double deadline_s = kDefaultDeadlineS;  // with mpi: how long a rank may be silent
  Progress progress = Progress::kPolling;
  bool talks = false;  // with mpi rank 0 reads what this process reads
};

// The ranks of a job, for one or more collective runs.
class Ranks {
 public:
  // With mpi outside mpirun this process starts mpirun, supervises its ranks and, unless that fails, exits as
  // they do. Inside, all ranks must call; they compare program, model, plan and options first.
  // Errors: unsupported without MPI; invalid_input when mpirun started another number of ranks than the
  // cluster has devices, when ranks differ, and for a deadline outside [1, 3600]; a failed job's (supervise).
  static Result<Ranks> make(const Job& job, const Context& context, bool talks = false);
  // The same without a model.
  static Result<Ranks> make(const RanksWanted& wanted, const Context& context);

  int size() const { return size_; }

  // Calls body once on every rank, each with a thread pool of its own. Errors: the body's; unsupported where
  // threads are to be pinned and the ranks of this machine have more than it has processors.
  Status run(const std::function<Status(Transport&, ThreadPool&)>& body);

  // Whether the rank of `transport` stores what the whole process keeps: rank 0 among threads, each process
  // under MPI.
  bool keeps(const Transport& transport) const { return mpi_ != nullptr || transport.rank() == 0; }
  // Whether this process prints: the only one, or rank 0 under MPI.
  bool speaks() const { return mpi_ == nullptr || mpi_->rank() == 0; }

 private:
  Ranks(int size, int threads, bool pin) : size_(size), threads_(threads), pin_(pin) {}
  static Result<Ranks> make(const RanksWanted& wanted, const Context& context,
                            const std::function<std::map<std::string, std::string>()>& fingerprint);
  // Lets parent and peers know of a fault. REQUIRES: mpi_.
  Status told(Status done);
  int size_ = 1;
  int threads_ = 1;
  bool pin_ = false;
  RankVoice* voice_ = nullptr;  // of main
  std::unique_ptr<Transport> mpi_;
};

}  // namespace grace::app
