"""The shapes of the built-in corpus: one sentence pattern a line, grouped by genre.

A slot in braces names a list or a column of a table in synthetic_words.py; ``{a profession}`` puts the fitting article
before the value ("a nurse", "an actor"). Two slots of one name never take the same value in a sentence. Every shape
says something that no other shape says, so that what a sentence means decides how it is worded.
"""

from __future__ import annotations

SHAPES: dict[str, str] = {
    "chat": """
My {aunt} {woman} was diagnosed with {diagnosis} in {month}.
My {uncle} {man} has been taking {drug} since {month}.
Did you hear that {man} spent a week at {hospital} with {injury}?
I have had {symptom} ever since I came back from {country}.
{woman} told me that her {aunt} is allergic to {allergen}.
Please do not tell {man} that I had {procedure} last year.
{woman} is nervous because her {aunt} needs {procedure}.
According to my {test}, I have {diagnosis}.
My {friend} has to take {drug} every night for {diagnosis}.
{man} got {injury} from {cause} on vacation in {country}.
We are donating {amount} to {hospital} in memory of {woman}.
I am quitting my job as {a profession} because of {diagnosis}.
My {uncle} keeps complaining about {symptom}, but he refuses to see a doctor.
The doctor says that I must {instruction} to get rid of {symptom}.
{woman} visits her {uncle} at {hospital} every {weekday}.
Our {pet} swallowed my {drug}, so we rushed to the vet.
I work as {a profession} in {city}.
My {elder_woman} was {a profession} in {city} until {year}.
{man} starts his new job at {company} in {month}.
{woman} was fired from {company} for stealing {amount}.
I earn {salary} a year as {a profession}.
{man} thinks that his boss at {company} {secret}.
My {uncle} used to be {a profession} before he went to prison.
I am working the night shift at {shop} until {month}.
{company} offered {woman} {salary} to move to {city}.
I quit {company} on {weekday} to become {a profession}.
Nobody at {company} knows that I also work as {a profession}.
My {friend} says that {company} will close its office in {city}.
{man} met his wife while working as {a profession} in {country}.
My {aunt} wants me to become {a profession} instead of {a profession}.
We moved from {city} to {city} in {year}.
My {aunt} lives alone in {city} with her {pet}.
I was born in {city}, but I grew up in {country}.
My {elder_man} fled from {country} in {year}.
I am flying to {city} on {date} for the {event}.
{woman} and {man} are getting married in {city} in {month}.
Our flight from {city} to {city} was delayed on {weekday}.
We rented a house near {city} for {rent} a month.
I lost my {keepsake} at the {venue} in {city}.
Somebody stole a {vehicle} from our street in {city}.
Let us meet at the {venue} on {weekday}.
I saw {sight} near the {venue} this morning.
{woman} is hiding from her ex in {city}.
Come and visit me in {city} before I leave for {country}.
My {friend} is stuck at the {venue} in {city}.
Have you ever eaten {dish} in {country}?
You get the best {dish} in {city} next to the {venue}.
We stopped in {city} on {weekday} to look at {sight}.
I am learning {language} because my {uncle} lives in {land}.
{woman} studies {subject} at {college}.
{man} dropped out of {college} to study {subject} in {city}.
My {aunt} teaches {language} at {school}.
{woman} speaks {language} with her {aunt}, but not with me.
My son {man} was expelled from {school} in {month}.
I failed {subject} twice before I left {college}.
My daughter {woman} is the only {faith} girl at {school}.
Only {woman} knows that I am pregnant by {man}.
{man} was raised {faith} in {country}.
My {aunt} became {a politics} after a year in {city}.
I would never date {a politics}.
{woman} is {faith}, but her husband is {faith}.
My {elder_man} lost {price} on a bad investment in {year}.
I owe {man} {cash} for the {product}.
Can you lend me {cash} until {weekday}?
{woman} inherited {price} from her {uncle}.
We paid {cash} for {dish} and wine in {city}.
My {friend} wants {amount} for an old {vehicle}.
I still owe {bank} {price} for my {vehicle}.
{man} sold his {vehicle} to {woman} for {amount}.
I spent {amount} on {a garment}, and now I cannot pay the rent.
My {aunt} hides {price} under her bed in {city}.
Please do not tell anyone, but my {friend} {secret}.
I found out on {weekday} that {woman} {secret}.
{woman} told {man} that her {aunt} {secret}.
Everyone at {school} says that {man} {secret}.
My {uncle} {secret}, and my {aunt} has no idea.
I am so {feeling} about {matter}.
{woman} called me because she felt {feeling} about {matter}.
My {friend} has been {feeling} all week because of {matter}.
{man} does not understand why I am {feeling} about {matter}.
I cannot come to the {event} because {excuse}.
Sorry, I missed your {event} in {city} because {excuse}.
{man} arrived late for the {event} because of {sight}.
I told my boss that {excuse}, but I was really at the {venue}.
Tell {woman} that {excuse}.
I want to {goal} before I turn {young_age}.
My {friend} thinks that I should {goal}.
{woman} laughed when I said that I want to {goal}.
I promised my {aunt} that I would {goal} by {month}.
Did you {chore} before you left for {city}?
It is your turn to {chore} on {weekday}.
I forgot to {chore}, and {woman} is furious.
{man} promised to {chore} while we are in {country}.
Please {chore} before {woman} arrives.
My {uncle} never remembers to {chore}.
{woman} met a man in {city} who {habit}.
My {uncle} {man} {habit}.
I am leaving {man} because he {habit}.
{woman} complained that her {uncle} {habit}.
My {uncle} gave me {gift} for my birthday.
{woman} wants {gift} for her wedding.
We bought {gift} for {man} at {shop}.
I returned {gift} that my {friend} gave me.
The {event} is on {date} at the {venue}.
{woman} cried during the {event} in {city}.
Are you coming to the {event} with {man} on {weekday}?
My {friend} invited my ex to the {event}.
Who will watch our {pet} during the {event}?
{woman} cooked {dish} for the {event}.
I made {dish} for {man}, and he hated it.
My {aunt} threw up after eating {dish} in {city}.
We had {dish} for dinner with {woman} on {weekday}.
My {aunt} {woman} is famous for her {dish}.
{man} spends every {weekday} on {hobby}.
I gave up {hobby} after {cause}.
{woman} met her husband through {hobby}.
My {friend} prefers {hobby} to {hobby}.
My {uncle} plays the {instrument} in a band in {city}.
{woman} practices the {instrument} at midnight.
I sold my {instrument} to pay for {procedure}.
{woman} wore {a color} {garment} to the {event}.
I left my {color} {garment} at the {venue}.
{man} bought {a color} {vehicle} in {city}.
My neighbor painted her {vehicle} {color}.
My {pet} is afraid of my {uncle}.
{woman} named her {pet} after her {uncle} {man}.
We found a lost {pet} outside the {venue}.
Our {pet} died on {date}.
My {elder_man} turns {old_age} on {date}.
{woman} had her first child in {city} when she was {young_age}.
{man} is {young_age} and still lives with his parents in {city}.
My {elder_woman} died of {fatal} in {city}.
{woman} {surname} was my teacher at {school} in {year}.
Do you remember {man} {surname} from {school}?
Is {man} {surname} still married to {woman}?
My new neighbor, {woman} {surname}, is {a profession}.
I have a crush on {man} {surname} from {company}.
{man} {surname} was arrested in {city} on {weekday}.
{woman} {surname} is running for mayor of {city}.
My coworker {woman} {surname} has {her_illness}.
{man} cannot have children because of {his_illness}.
{woman} flew to {city} for {her_procedure}.
{man} cried on {weekday} because he feels {mood}.
My {friend} was bitten by a {biter} in {city}.
We have no {utility} because {man} did not pay the bill.
Call {woman} at {phone} about the {event}.
My new number in {country} is {phone}.
""",
    "clinical": """
Patient is {a work_age}-year-old {profession} with {diagnosis}.
{woman} {surname}, {age}, was admitted to {hospital} with {symptom}.
Mr. {surname} reports {symptom} since {weekday}.
Mrs. {surname} was started on {drug} for {diagnosis}.
Ms. {surname} stopped taking {drug} because of {symptom}.
The patient is allergic to {allergen} and was given {drug}.
{man} {surname} underwent {procedure} at {hospital} on {date}.
Her {elder_woman} died of {fatal} at the age of {old_age}.
Family history includes {fatal} in the {kinsman} and {fatal} in the {kinswoman}.
Mr. {surname} was treated for {injury} after {cause}.
The {test} on {date} showed signs of {diagnosis}.
Mrs. {surname} declined {procedure} for religious reasons.
Referred to the {clinic} clinic in {city} to rule out {diagnosis}.
He was told to {instruction} after {procedure}.
She denies {symptom} but admits to {symptom}.
Discharged home on {weekday} with {drug} and {a device}.
Mr. {surname} works as {a profession} and {risk}.
The patient {risk} and complains of {symptom}.
Mrs. {surname} has had {diagnosis} since {year}.
{woman} {surname} is pregnant and takes {drug} for {diagnosis}.
Patient returned from {country} with {symptom} and a high white cell count.
She has been free of {symptom} since the dose of {drug} was halved.
The {uncle} of the patient was informed about the {exam} on {weekday}.
Mr. {surname} needs {a device} because of {need}.
Mrs. {surname} requested a second opinion on {procedure} at {hospital}.
Ms. {surname} is {a profession} from {city} with {symptom}.
{a exam} is scheduled at {hospital} for {date}.
Mrs. {surname} was advised to {instruction} until {month}.
She takes {drug} in the morning for {diagnosis}.
Patient developed {symptom} two days after {procedure}.
Mr. {surname} was transferred from {hospital} to {hospital} on {date}.
{man} {surname} is recovering from {injury} at a clinic in {city}.
The patient lives in {city} with her {aunt} and her {pet}.
Mrs. {surname} wants to stop {drug} because she is planning a pregnancy.
The patient reports {symptom} after eating {food}.
Mrs. {surname} carries an adrenaline pen because of {food}.
Mr. {surname} fainted at the {venue} on {weekday}.
An ambulance brought {a age}-year-old man from the {venue} with {injury}.
Ms. {surname} took too much {drug} by mistake on {weekday}.
Ms. {surname} feels {mood} since the death of her {uncle}.
Patient says that her {uncle} {risk}.
The {aunt} reports that Mr. {surname} {risk}.
Interpreter for {language} was needed to explain {procedure} to Mrs. {surname}.
As {a faith} patient, Mr. {surname} asked to see a chaplain before {procedure}.
Mrs. {surname} has been off work as {a profession} since {month}.
Insurance refused to pay {price} for {procedure}.
{company} asked for the medical records of Ms. {surname}.
The {exam} was normal, but {symptom} persisted.
Prescribed {drug} twice a day until the next visit on {date}.
Mr. {surname} forgot to take {drug} during his trip to {country}.
{woman} {surname} gave birth to twins at {hospital} on {date}.
Dr. {surname} diagnosed {diagnosis} in {a age}-year-old woman.
Dr. {surname} will perform {procedure} on Mr. {surname} on {weekday}.
Dr. {surname} recommends {drug} instead of {drug}.
Nurse {surname} noted {symptom} during the night shift.
Mrs. {surname} left her {device} on a train to {city}.
The patient was bitten by a {biter} in {country}.
He developed {symptom} while working as {a profession} in {city}.
History of {procedure} in {city} in {year}.
Mr. {surname} cannot afford {drug} since he lost his job at {company}.
The {clinic} clinic reports that Mrs. {surname} missed her visit on {date}.
Teenager from {school} was seen on {weekday} for {symptom}.
Four students at {school} were exposed to {contagious}.
Mr. {surname}, {age}, fell at the {venue} and has {injury}.
Ms. {surname} attends therapy on {weekday} because she feels {mood}.
The patient is {faith} and refuses {procedure}.
Mother reports {symptom} since her son {man} started {drug}.
Wants a genetic test because her {kinswoman} had {fatal}.
Mrs. {surname} copes with {symptom} through {hobby}.
Mr. {surname} can no longer play the {instrument} because of {symptom}.
She gave up {hobby} because of {symptom}.
Mr. {surname} is unable to {chore} because of {symptom}.
Ms. {surname} signed the consent form for {procedure} in {city}.
Emergency contact of the patient is her {uncle} {man} in {city}.
The patient can be reached at {phone} after {procedure}.
The {exam} of Mrs. {surname} was sent to {hospital} by mistake.
Mr. {surname} was quarantined on arrival from {country} with {contagious}.
Unvaccinated {profession} presented with {contagious} and {symptom}.
Mrs. {surname} is worried that {drug} causes {symptom}.
After {cause}, Mr. {surname} suffers from {symptom}.
Weaning off {drug} began in {month}, and Ms. {surname} now {risk}.
Mrs. {surname} was found wandering near the {venue} in {city}.
Mr. {surname} believes that his {friend} {secret}.
The patient told staff that she wants to stop treatment and move to {country}.
She blames the chemicals at {company} for {symptom}.
Mr. {surname} donated a kidney to his {aunt} in {year}.
Veteran with {diagnosis} since his return from {country} in {year}.
Young {profession} suffered {injury} from {cause}.
Mr. {surname} choked on {dish} at the {venue}.
The whole family of Mrs. {surname} fell ill after eating {dish} in {city}.
Ms. {surname} asked whether {drug} is safe with {drug}.
Lab called on {weekday} to confirm {diagnosis} in Mr. {surname}.
The {exam} was repeated at {hospital} because of {symptom}.
Mrs. {surname} has been waiting for {procedure} since {month}.
Stopped smoking in {year} but still has {symptom}.
Her employer, {company}, was told that she has {diagnosis}.
Mr. {surname} speaks only {language} and has {symptom}.
Former {profession}, now in a nursing home in {city}, with {diagnosis}.
Patient admits to buying {drug} online from {country}.
Ms. {surname} was told on {weekday} that she has {her_illness}.
Mr. {surname} asked about treatment for {his_illness} in {month}.
Mrs. {surname} recovered well from {her_procedure} at {hospital}.
The {device} was fitted on {weekday} by Dr. {surname}.
""",
    "support": """
My {appliance} {fault}.
The {appliance} that I bought in {city} {fault}.
Since {weekday}, my {appliance} {fault}, and I want my money back.
The {appliance} you sent to my {aunt} {fault}.
I paid {amount} for {a appliance} that {fault}.
I ordered the {product} on {date}, but {hitch}.
I unpacked the {product} from {shop}, and {hitch}.
Your driver left my {product} at the {venue} in {city}.
The {product} from {shop} never reached my {uncle} in {city}.
I would like to return the {product} because {hitch}.
Please send the replacement {product} to {woman} {surname} in {city}.
How much does it cost to ship the {goods} to {country}?
Somebody delivered my {goods} to Mrs. {surname} by mistake.
The {goods} for my {aunt} came three weeks late.
I need the {goods} before {date}.
Order {order} for the {goods} has not arrived.
Ticket {order} about my {appliance} was closed without an answer.
I canceled order {order} in {month}, but you still charged {amount}.
I would like to {wish}.
My name is {woman} {surname}, and I want to {wish}.
Your agent {woman} could not help me to {wish}.
Am I right to call {phone} if I want to {wish}?
Why do I have to pay {cash} to {wish}?
{provider} kept me on hold for an hour when I tried to {wish}.
Can my {aunt} sign for me at {provider} if I want to {wish}?
{provider} will not let me {wish} from {country}.
I have tried since {month} to {wish}.
The app crashes when I try to {task}.
I cannot {task} from {country}.
The {feature} has been gone since {weekday}, and I cannot {task}.
The {feature} logs me out whenever I {task}.
Why can {woman} {task} while I cannot?
The {feature} shows me the data of {man} {surname}.
The {feature} does not work in {language}.
My {aunt} is blind and cannot use the {feature}.
Please explain the {feature} to my {elder_man}, who is {old_age}.
Somebody logged in to my account from {city} on {weekday}.
Somebody used my card to buy {gift} in {city}.
A stranger from {country} has read my {document}.
{bank} took {amount} from my account twice in {month}.
{bank} refused my loan of {price} because I am {a profession}.
{bank} froze my account after I sent {price} to {country}.
I sent {amount} to {man} {surname} by mistake.
My card from {bank} was swallowed by a machine in {city}.
{bank} sent the statement of Mr. {surname} to my address.
I suspect that someone at {bank} sold a copy of my {document}.
Please update my salary at {bank} to {salary}.
Your {service} invoice says {cash} instead of {amount}.
My {service} bill doubled in {month}.
We have had no {utility} in {city} since {weekday}.
I want to cancel the {service} contract of my late {aunt}.
You charged me {cash} for {a service} subscription that I never wanted.
I am moving to {city} and need {utility} from {month}.
My {elder_man}, who is {old_age}, signed {a service} contract by phone.
I uploaded my {document} on {weekday}, but nothing happened.
My {document} still shows my old name, {surname}.
You emailed my {document} to my {friend}.
I lost my {document} during the flight to {city}.
Why do you need a copy of my {document} to {wish}?
The {document} of my {uncle} has the wrong birth date.
I left my {keepsake} on the flight to {city}.
I forgot my {keepsake} in room {room} of your hotel in {city}.
Did anyone hand in {a color} {garment} on {weekday}?
My {color} {garment} shrank after one wash.
Do you have the {garment} in {color}?
The {garment} came in {color} instead of {color}.
My flight to {city} on {date} was canceled.
Your airline lost my {keepsake} on the way to {country}.
I missed my connection in {city} because of your late flight from {city}.
Can my {pet} travel with me to {country}?
I need a wheelchair at the airport in {city} on {date}.
Please change the name on my ticket from {surname} to {surname}.
I booked a table for my {event}, but {excuse}.
I want a refund for the {event} in {city} because {excuse}.
The hotel in {city} charged {amount} for my {pet}.
In our apartment in {city}, {damage}.
I called the landlord on {weekday} because {damage}.
My {elder_woman} is {old_age}, and {damage}.
Since {month}, {damage}, but nobody comes.
I am not paying {rent} in rent while {damage}.
Please send someone to Mr. {surname} because {damage}.
I want to insure my {vehicle} for {price}.
The {vehicle} that I rented in {city} broke down in {country}.
My claim for the stolen {vehicle} was rejected by {company}.
A driver from {company} hit my {vehicle} near the {venue}.
My insurance must cover {procedure}, which costs {price}.
Does my plan cover {drug} for {diagnosis}?
Does the travel policy cover {injury} from {cause}?
{company} paid me only {amount} for {injury}.
Is my {device} still under warranty in {country}?
Your pharmacy sent {drug} instead of {drug}.
I need a refill of {drug} before {weekday}.
Can I pick up {drug} for my {uncle} in {city}?
I cannot come to {hospital} on {date} because {excuse}.
Please move my {exam} at {hospital} to {weekday}.
The invoice from {hospital} lists {procedure} that I never had.
I want to enroll my {uncle} at {college} for {subject}.
{college} lost my application for {subject}.
The tuition at {college} went up by {amount}.
Is there {a language} class in {city} on {weekday}?
I applied at {company} as {a profession} in {month}.
{company} has not paid my salary of {salary} since {year}.
A recruiter from {company} shared my {document} with {company}.
My manager at {company} found out that I have {diagnosis}.
I would like to speak to {woman} {surname} in the {city} office.
{man} from your {city} office was rude to my {aunt}.
Thank you, {woman}, for helping me {wish}.
Your technician {man} broke my {appliance} on {weekday}.
The cook at {company} ignored my allergy to {food}.
Can you make the {dish} without {food}?
I found a hair in the {dish} that I ordered on {weekday}.
The {dish} that you delivered gave me {symptom}.
Your ad for the {product} is offensive to {faith} customers.
Stop sending me ads about {diagnosis}.
Stop sending {hobby} magazines to my {uncle}, who died in {month}.
Your courses in {hobby} are too expensive for {a profession}.
I gave the {hobby} class in {city} one star.
My {pet} chewed up the {product} from {shop}.
{shop} in {city} would not let me in with my {device}.
""",
}
