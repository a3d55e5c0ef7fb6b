//! The pods of a training on several nodes, one on each: all of them begin, or none, and one that fails ends all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::{Follower, PodJob, Shared};
use super::upload::Together;
use crate::engine::{Ending, JobHandle, Launch, Line, LineSender, line_channel};
use crate::error::Error;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pipe_spec::TrainerExit;

/// How long the pods of other nodes may take to save and end when one has ended.
const END_TIMEOUT: Duration = Duration::from_secs(90);

/// The same job as the pod of a node has it: what its first process writes lies apart.
pub fn launch_of(launch: &Launch, node: u32) -> Launch {
    let mut launch = launch.clone();
    if node > 0 {
        let before = launch.job_folder.0.clone();
        let name = before.file_name().unwrap_or_default().to_string_lossy();
        launch.job_folder.0 = before.with_file_name(format!("{name}-{node}"));
        let own = launch.mounts.writable.iter_mut().filter(|(host, _)| *host == before);
        own.for_each(|(host, _)| host.clone_from(&launch.job_folder.0));
    }
    launch
}

/// A pod, for those who end it.
pub struct Member {
    /// Seconds that it may take to end.
    pub grace: u32,
    pub shared: Arc<Shared>,
    pub together: Together,
}

impl Member {
    /// How long the others may go on now that this one has ended; nothing where it has done its part.
    fn others_have(&self) -> Option<Duration> {
        match self.shared.exit_code() {
            _ if !self.together.is_complete() => Some(Duration::ZERO),
            Some(0) if self.together.node > 0 => None,
            _ => Some(END_TIMEOUT),
        }
    }
}

/// Follows all pods of a job to their ends.
pub async fn follow(pods: Vec<(Follower, Member)>, to: LineSender) {
    let (followers, members): (Vec<Follower>, Vec<Member>) = pods.into_iter().unzip();
    let mut running: FuturesUnordered<_> =
        followers.into_iter().enumerate().map(|(node, follower)| follow_one(node, follower, to.clone())).collect();
    let mut limit: Option<Instant> = None;
    loop {
        let left = limit.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match tokio::time::timeout(left, running.next()).await {
            Ok(None) => return,
            // Nobody listens any more; the job continues.
            Ok(Some(_)) if to.is_closed() => return,
            Ok(Some(node)) => {
                let at = members[node].others_have().map(|time| Instant::now() + time);
                limit = limit.into_iter().chain(at).min();
            }
            Err(_) => {
                limit = None;
                members.iter().for_each(|member| member.shared.ask_to_end(member.grace));
            }
        }
    }
}

async fn follow_one(node: usize, follower: Follower, to: LineSender) -> usize {
    if node == 0 {
        follower.follow(to).await;
        return node;
    }
    // Positions in the log are those of the first node.
    let (sender, mut lines) = line_channel();
    let forward = async {
        while let Some(line) = lines.recv().await {
            if to.send(Line { end: None, ..line }).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(follower.follow(sender), forward);
    node
}

/// All pods of a job.
pub struct NodesJob(pub Vec<PodJob>);

#[async_trait(?Send)]
impl JobHandle for NodesJob {
    async fn stop(&self) -> Result<(), Error> {
        for pod in &self.0 {
            pod.stop().await?;
        }
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        for pod in &self.0 {
            pod.kill().await?;
        }
        Ok(())
    }

    fn is_saving(&self) -> bool {
        self.0.iter().any(PodJob::is_saving)
    }

    fn has_left_files(&self) -> bool {
        self.0.iter().any(JobHandle::has_left_files)
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let mut endings = Vec::new();
        for pod in &mut self.0 {
            endings.push(pod.ending().await);
        }
        let endings = endings.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(ending_of_all(endings))
    }

    async fn remove(&mut self) -> Result<(), Error> {
        for pod in &mut self.0 {
            pod.remove().await?;
        }
        Ok(())
    }
}

/// The end that explains those of all others; the first of several.
fn ending_of_all(endings: Vec<Ending>) -> Ending {
    let is_done = endings[0].exit_code == Some(0);
    let order = |ending: &Ending| match ending.exit_code.and_then(TrainerExit::from_code) {
        Some(TrainerExit::DeviceOutOfMemory | TrainerExit::HostOutOfMemory) => 0,
        _ if ending.oom_killed => 0,
        _ if ending.ended_by.is_some() => 1,
        Some(TrainerExit::Done | TrainerExit::Stopped) => 5,
        // So does one that has lost the others.
        Some(TrainerExit::Unexpected) => 4,
        _ if ending.lost.is_some() => 3,
        _ => 2,
    };
    let explains =
        endings.into_iter().enumerate().min_by_key(|(node, ending)| if is_done { *node } else { order(ending) });
    explains.map_or(Ending::exited(None), |(_, ending)| ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EndedBy;

    #[test]
    fn the_end_that_explains_all() {
        let exited = |code: i64| Ending::exited(Some(code));
        let lost = Ending { ended_by: Some(EndedBy::NodeLost { what: "n2".to_owned() }), ..Ending::exited(None) };
        let deleted = Ending { lost: Some("its pod was deleted".to_owned()), ..Ending::exited(None) };
        let killed = Ending { oom_killed: true, ..exited(137) };
        for (endings, want) in [
            (vec![exited(0), lost.clone()], 0),
            (vec![exited(1), lost.clone()], 1),
            (vec![exited(143), lost.clone()], 1),
            (vec![exited(1), killed.clone()], 1),
            (vec![lost, killed], 1),
            (vec![exited(42), exited(42)], 0),
            (vec![exited(143), exited(3)], 1),
            (vec![exited(137), deleted.clone()], 0),
            (vec![exited(143), deleted.clone()], 1),
            (vec![exited(1), deleted], 1),
            (vec![exited(1), exited(137)], 1),
            (vec![exited(143), exited(143)], 0),
        ] {
            assert_eq!(ending_of_all(endings.clone()), endings[want], "{endings:?}");
        }
    }
}
